//! Which redirects a client with credentials follows.

use reqwest::{StatusCode, redirect::Policy};

/// Most redirects of one request.
const REDIRECTS: usize = 5;

/// Follows a redirect only within the origin, and only where it keeps the method (307, 308): credentials go where whoever
/// gave them said, and nowhere else. Any other is the answer.
pub fn within_origin() -> Policy {
    Policy::custom(|attempt| {
        let keeps =
            matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        let stays = attempt.previous().first().is_some_and(|from| from.origin() == attempt.url().origin());
        if keeps && stays && attempt.previous().len() <= REDIRECTS {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}
