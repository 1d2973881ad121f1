//! WebSockets: bytes both ways, those of the server without credentials.

use crate::{mask::Mask, websocket::Frames};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;

/// Copies until both ends have ended, or one is gone.
///
/// # Errors
/// One is gone.
pub(crate) async fn join(client: Upgraded, server: Upgraded, mask: &Mask) -> io::Result<()> {
    let (mut from_client, mut to_client) = split(TokioIo::new(client));
    let (mut from_server, mut to_server) = split(TokioIo::new(server));
    let out = async {
        copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let back = async {
        let (mut chunk, mut frames) = (vec![0; CHUNK], Frames::default());
        loop {
            let count = from_server.read(&mut chunk).await?;
            if count == 0 {
                // What waits is of a message without an end.
                return to_client.shutdown().await;
            }
            let piece =
                frames.push(mask, chunk.get(..count).unwrap_or_default()).map_err(io::Error::other)?;
            to_client.write_all(&piece).await?;
            to_client.flush().await?;
        }
    };
    tokio::try_join!(out, back).map(|_| ())
}
