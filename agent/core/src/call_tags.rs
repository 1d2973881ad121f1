//! What a tag of a tool call is given by, whoever asks for it: the one container of the two processes, and a new number.

use crate::containers::random_hex;
use ringfence_bpf::{ContainerId, Membership};
use std::num::NonZeroU64;

/// There is no random number.
#[derive(Debug, thiserror::Error)]
#[error("no tag can be made")]
pub(crate) struct NewTagError(#[source] std::io::Error);

/// The container that both are in, and neither is about to leave.
pub(crate) fn one_container(one: Option<Membership>, other: Option<Membership>) -> Option<ContainerId> {
    match (one?, other?) {
        (Membership { container: Some(a), next: None }, Membership { container: Some(b), next: None })
            if a == b =>
        {
            Some(a)
        }
        _ => None,
    }
}

/// A number that was never given out, as far as chance goes: tags of an earlier daemon live on. Below 2^53, for JSON's sake.
///
/// # Errors
/// There are no random numbers.
pub(crate) fn new_tag() -> Result<NonZeroU64, NewTagError> {
    loop {
        let random = random_hex::<8>().map_err(NewTagError)?;
        let number = u64::from_str_radix(&random, 16).unwrap_or_default() & ((1 << 53) - 1);
        if let Some(tag) = NonZeroU64::new(number) {
            return Ok(tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(raw: u64) -> Option<Membership> {
        Some(Membership { container: Some(ContainerId::from_raw(raw)), next: None })
    }

    #[test]
    fn both_are_in_one_container() {
        assert!(one_container(inside(5), inside(5)).is_some());
        for (a, b) in [(None, None), (inside(5), None), (None, inside(5)), (inside(5), inside(6))] {
            assert!(one_container(a, b).is_none());
        }
        let leaving = Some(Membership { next: Some(ContainerId::from_raw(6)), ..inside(5).unwrap() });
        assert!(one_container(inside(5), leaving).is_none());
    }

    #[test]
    fn tags_are_numbers_that_json_keeps() {
        let tags: std::collections::HashSet<u64> = (0..100).map(|_| new_tag().unwrap().get()).collect();
        assert_eq!(tags.len(), 100);
        assert!(tags.iter().all(|tag| *tag < 1 << 53));
    }
}
