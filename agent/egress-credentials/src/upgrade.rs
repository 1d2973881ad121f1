//! WebSockets: bytes both ways, those of the server without credentials.

use crate::{exchange::Exchange, websocket::Frames};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;

/// Copies until both ends have ended, one is gone, or the server sent a credential.
///
/// # Errors
/// One is gone, or was to end.
pub(crate) async fn join(client: Upgraded, server: Upgraded, exchange: &Exchange) -> io::Result<()> {
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
            let piece = frames
                .push(&exchange.hosts().mask, chunk.get(..count).unwrap_or_default())
                .map_err(io::Error::other)?;
            to_client.write_all(&piece).await?;
            to_client.flush().await?;
            if frames.found() > 0 {
                exchange.reflects();
                // Each message could be a guess.
                return Err(io::Error::other("a credential came back"));
            }
        }
    };
    tokio::try_join!(out, back).map(|_| ())
}
