//! The endpoint's connections.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Out of descriptors, the endpoint once accepted nobody any more.
#[tokio::test]
async fn a_connection_that_cannot_be_accepted_does_not_close_the_endpoint() {
    let (mut client, served) = UnixStream::pair().unwrap();
    let mut coming = [Err(io::Error::other("too many open files")), Ok(served)].into_iter();
    let next = || {
        let next = coming.next();
        async move { next.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into())) }
    };
    let stop = CancellationToken::new();
    let judge = |stream, _| std::future::ready((stream, Router::new()));
    let call = async {
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        stop.cancel();
        answer
    };
    let both = async { tokio::join!(accept(next, judge, &stop), call).1 };
    let answer = tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}
