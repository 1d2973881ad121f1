//! An error and everything that caused it, in one line: for logs, `status` and whoever has nobody to return an error to.

use std::error::Error;

/// The error, its source, that one's source and so on, joined by `: `. Displays of errors never repeat their sources.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// What caused everything else: the last source.
pub fn root<'e>(mut error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the profile")]
    struct Outer(#[source] io::Error);

    #[test]
    fn causes_follow_their_error() {
        assert_eq!(
            chain(&Outer(io::Error::other("the disk is on fire"))),
            "cannot read the profile: the disk is on fire"
        );
        assert_eq!(chain(&io::Error::other("alone")), "alone");
        assert_eq!(root(&Outer(io::Error::other("on fire"))).to_string(), "on fire");
    }
}
