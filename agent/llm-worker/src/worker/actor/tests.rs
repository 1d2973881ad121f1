//! Tests of what the worker's task does with what comes in an order that load brings about.

use super::*;
use crate::{
    access::Access,
    connection::{self, ConnectionTokens},
    core_client::CoreClient,
    frame::{FrameReader, writer},
    samples::config,
    turn::Job,
    worker::INPUTS,
};
use serde_json::{Value, json};
use tokio::{io::DuplexStream, net::UnixListener};

struct Lab {
    actor: AgentActor,
    orders: mpsc::Receiver<Order>,
    heard: FrameReader<DuplexStream>,
}

const RUNTIME: ConnId = 1;

#[tokio::test]
async fn connections_end_that_nobody_on_the_other_side_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let (listener, tokens) = (UnixListener::bind(&path).unwrap(), ConnectionTokens::default());
    let access = Arc::new(Access::new(&config(), CoreClient::default(), Arc::default()));
    let (inputs_out, mut inputs) = mpsc::channel(INPUTS);
    let accepting =
        tokio::spawn(connection::accept(listener, inputs_out, Arc::default(), access, tokens.clone()));
    let stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let Some(Input::Opened(_, peer)) = inputs.recv().await else { panic!("not opened") };
    tokens.accepting.cancel();
    let mut connections = accepting.await.unwrap();
    assert_eq!(connections.len(), 1, "what is under way goes on");
    // As the worker does it: the last words, then nobody is there any more.
    peer.push(rpc::failed("the end"));
    drop((peer, inputs));
    tokens.listening.cancel();
    while connections.join_next().await.is_some() {}
    let mut heard = FrameReader::new(stream);
    let body = heard.next(None).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["params"]["message"], "the end");
    assert!(heard.next(None).await.is_err());
}

impl Lab {
    /// A worker with a runtime, and nobody who runs turns.
    async fn new() -> Self {
        let counters = Arc::new(Counters::default());
        let (orders, ordered) = mpsc::channel(16);
        let status = watch::Sender::new(WorkerCounts::default());
        let redactor = Arc::new(Redactor::new([]));
        let mut actor = AgentActor::new(
            Arc::new(config()),
            redactor,
            Reporter::default(),
            orders,
            (status, Arc::clone(&counters)),
        );
        let (near, far) = tokio::io::duplex(1 << 16);
        let (peer, writing) = writer(near, &counters);
        tokio::spawn(writing);
        actor.input(Input::Opened(RUNTIME, peer)).await;
        let (answer, answered) = oneshot::channel();
        actor.input(Input::Register(RUNTIME, answer)).await;
        answered.await.unwrap().unwrap();
        Self { actor, orders: ordered, heard: FrameReader::new(far) }
    }

    async fn ask(&mut self, id: u64) {
        let text =
            json!({"jsonrpc": "2.0", "id": id, "method": "turn", "params": {"messages": []}}).to_string();
        let body = bytes::Bytes::from(text);
        let request = rpc::parse(&body).unwrap();
        let params = rpc::params(&request).map(Box::new);
        self.actor.input(Input::Turn(RUNTIME, request.id.clone().unwrap(), params)).await;
    }

    fn ordered(&mut self) -> Option<Job> {
        match self.orders.try_recv() {
            Ok(Order::Turn(job)) => Some(job),
            _ => None,
        }
    }

    async fn hears(&mut self) -> Value {
        serde_json::from_slice(&self.heard.next(Some(Duration::from_secs(120))).await.unwrap()).unwrap()
    }
}

#[tokio::test]
async fn a_runtime_may_be_faster_than_the_report_of_its_turn() {
    let mut lab = Lab::new().await;
    lab.ask(1).await;
    let job = lab.ordered().unwrap();
    // The runtime has its answer, ran its tools and asks again, and the report is still on its way.
    job.answered.store(job.epoch, Ordering::Release);
    lab.ask(2).await;
    assert!(lab.ordered().is_none(), "one turn at a time");
    // It may not do so twice.
    lab.ask(3).await;
    let refused = lab.hears().await;
    assert_eq!(refused["id"], 3);
    assert!(refused["error"]["message"].as_str().unwrap().contains("a turn is running"), "{refused}");
    let report = |epoch| Report { epoch, outcome: Outcome::ToolUse, usage: Usage::default(), bytes: 0 };
    lab.actor.report(report(job.epoch)).await;
    let next = lab.ordered().expect("the turn that was asked for early");
    assert!(next.epoch > job.epoch);
    // While a turn runs that nobody answered, another is refused as ever.
    lab.ask(4).await;
    assert_eq!(lab.hears().await["id"], 4);
    assert!(lab.ordered().is_none());
}
