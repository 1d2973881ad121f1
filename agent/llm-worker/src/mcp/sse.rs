//! The transport of 2024-11-05, HTTP+SSE: a GET whose event stream first names the address that messages are posted to,
//! and then carries the server's. <https://modelcontextprotocol.io/specification/2024-11-05/basic/transports>

use crate::provider::sse::{self, Events};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    service::RoleClient,
    transport::Transport,
};
use std::sync::Arc;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};

/// Messages that wait to be looked at; the server waits when there are more.
const WAITING: usize = 64;
/// Messages that are posted at a time.
const POSTS: usize = 16;
/// Most bytes of the answer to a message that are read: there should be none.
const MAX_ANSWER: usize = 64 << 10;

/// Why the transport does not work.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The connection.
    #[error("the HTTP request failed")]
    Http(#[source] reqwest::Error),
    /// Not what was asked for.
    #[error("HTTP {0}")]
    Status(StatusCode),
    /// Something else than events.
    #[error("it answers with {0:?}, not with an event stream")]
    NotEvents(String),
    /// No stream of events.
    #[error("the event stream is broken")]
    Stream(#[source] sse::Error),
    /// No address to post to.
    #[error("its event stream does not begin with the address to post to")]
    NoEndpoint,
    /// A token would go elsewhere.
    #[error("it wants messages posted to another origin ({0})")]
    Elsewhere(String),
    /// Not to be sent.
    #[error("cannot encode the message")]
    Encode(#[source] serde_json::Error),
    /// The stream ended.
    #[error("the event stream ended")]
    Ended,
}

/// An open transport.
pub(super) struct Sse {
    client: Client,
    endpoint: Url,
    token: Option<HeaderValue>,
    posts: Arc<Semaphore>,
    messages: mpsc::Receiver<ServerJsonRpcMessage>,
    reader: JoinHandle<()>,
}

impl Drop for Sse {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Sse {
    /// Opens the stream and waits for the address. The caller bounds the time.
    ///
    /// # Errors
    /// [`Error`].
    pub(super) async fn connect(
        client: Client,
        url: &Url,
        token: Option<HeaderValue>,
    ) -> Result<Self, Error> {
        let mut request = client.get(url.clone()).header(ACCEPT, "text/event-stream");
        if let Some(token) = &token {
            request = request.header(AUTHORIZATION, token);
        }
        let response = request.send().await.map_err(Error::Http)?;
        if !response.status().is_success() {
            return Err(Error::Status(response.status()));
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(Error::NotEvents(kind.chars().take(100).collect()));
        }
        let mut stream = Stream { response, events: Events::default(), waiting: Vec::new().into_iter() };
        let first = stream.next().await?.filter(|event| event.name == "endpoint").ok_or(Error::NoEndpoint)?;
        let endpoint = url.join(first.data.trim()).map_err(|_| Error::NoEndpoint)?;
        if endpoint.origin() != url.origin() {
            return Err(Error::Elsewhere(endpoint.origin().ascii_serialization()));
        }
        let (received, messages) = mpsc::channel(WAITING);
        let reader = tokio::spawn(async move {
            if let Err(error) = read(stream, received).await {
                tracing::debug!("an MCP server's event stream: {error}");
            }
        });
        let posts = Arc::new(Semaphore::new(POSTS));
        Ok(Self { client, endpoint, token, posts, messages, reader })
    }
}

/// Reads messages until the stream ends or something in it is no message.
async fn read(mut stream: Stream, received: mpsc::Sender<ServerJsonRpcMessage>) -> Result<(), Error> {
    while let Some(event) = stream.next().await? {
        if !matches!(event.name.as_str(), "" | "message") {
            continue;
        }
        let message = serde_json::from_str(&event.data).map_err(Error::Encode)?;
        if received.send(message).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

struct Stream {
    response: Response,
    events: Events,
    waiting: std::vec::IntoIter<sse::Event>,
}

impl Stream {
    async fn next(&mut self) -> Result<Option<sse::Event>, Error> {
        loop {
            if let Some(event) = self.waiting.next() {
                return Ok(Some(event));
            }
            let Some(chunk) = self.response.chunk().await.map_err(Error::Http)? else { return Ok(None) };
            let mut events = Vec::new();
            self.events.feed(&chunk, |event| events.push(event)).map_err(Error::Stream)?;
            self.waiting = events.into_iter();
        }
    }
}

impl Transport<RoleClient> for Sse {
    type Error = Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let mut request = self.client.post(self.endpoint.clone()).header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let posts = Arc::clone(&self.posts);
        async move {
            let _place = posts.acquire_owned().await.map_err(|_| Error::Ended)?;
            let body = serde_json::to_vec(&message).map_err(Error::Encode)?;
            let mut response = request.body(body).send().await.map_err(Error::Http)?;
            if !response.status().is_success() {
                return Err(Error::Status(response.status()));
            }
            // Read to its end, so that the connection can be used again.
            let mut read = 0;
            while let Ok(Some(chunk)) = response.chunk().await {
                read += chunk.len();
                if read > MAX_ANSWER {
                    break;
                }
            }
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.reader.abort();
        self.messages.close();
        Ok(())
    }
}
