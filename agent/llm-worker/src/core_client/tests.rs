//! A worker and a core that the test plays.

use super::*;
use ringfence_wire::{
    agent::{MAX_QUESTION, ToWorker},
    conn::Conn,
    trace::{MAX_PATHS_BYTES, MAX_TEXT},
};
use std::{os::fd::AsFd, task::Poll};

#[test]
fn refusals_of_strangers_hide_none_of_who_is_known() {
    let host = CoreClient::default();
    let recorded = |whose| (0..1000).filter(|_| host.may_record(whose)).count();
    assert_eq!(recorded(RefusedParty::Strangers), MOST_OF_STRANGERS as usize);
    assert_eq!(recorded(RefusedParty::Known), MOST_RECORDED as usize);
}

#[tokio::test]
async fn what_must_not_be_missing_is_the_core_s_before_it_is_gone_on() {
    let (ours, mut core) = UnixStream::pair().unwrap();
    let host = CoreClient::new(ours, CancellationToken::new(), CancellationToken::new());
    let never = CancellationToken::new();
    let said = |id: &str| AgentEvent::IntentEnded { id: id.to_owned(), error: None, moment: 0 };
    assert!(host.report_patiently(&said("first"), &never).await);
    let mut heard = vec![0; 1 << 10];
    let read = core.try_read(&mut heard).unwrap();
    assert!(String::from_utf8_lossy(&heard[..read]).contains("first"));
    // Nobody reads, and no more can be written, though there is room in between.
    let error = Some("x".repeat(2000));
    let long = AgentEvent::IntentEnded { id: "f".repeat(12), error, moment: 0 };
    for _ in 0..QUEUE / 2 {
        host.report(&long);
        tokio::task::yield_now().await;
    }
    let last = said("last");
    let mut last = Box::pin(host.report_patiently(&last, &never));
    let is_ready = timeout(Duration::from_millis(200), last.as_mut()).await.is_ok();
    assert!(!is_ready, "it is in the worker alone");
    let heard = async {
        let mut all = Vec::new();
        while !all.windows(4).any(|word| word == b"last") {
            tokio::io::AsyncReadExt::read_buf(&mut core, &mut all).await.unwrap();
        }
    };
    assert!(tokio::join!(last, heard).0);
}

#[tokio::test]
async fn nobody_waits_for_the_core_any_more_when_that_is_cut() {
    let (ours, _core) = UnixStream::pair().unwrap();
    let host = CoreClient::new(ours, CancellationToken::new(), CancellationToken::new());
    let error = Some("x".repeat(2000));
    let long = AgentEvent::IntentEnded { id: "f".repeat(12), error, moment: 0 };
    for _ in 0..2 * QUEUE {
        host.report(&long);
        tokio::task::yield_now().await;
    }
    let cut = CancellationToken::new();
    let mut waits = Box::pin(host.report_patiently(&long, &cut));
    let mut once = async || std::future::poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx))).await;
    assert_eq!(once().await, Poll::Pending, "nobody reads");
    cut.cancel();
    assert_eq!(once().await, Poll::Ready(false));
}

#[tokio::test]
async fn an_answer_belongs_to_the_question_of_its_number() {
    let (ours, core) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let ours = UnixStream::from_std(ours).unwrap();
    let host = CoreClient::new(ours, CancellationToken::new(), CancellationToken::new());
    let (peer, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    // Whoever asks first gives up; then two ask, and are answered the other way round.
    let mut given_up = Box::pin(host.speaker(peer.as_fd()));
    std::future::poll_fn(|cx| match given_up.as_mut().poll(cx) {
        Poll::Pending => Poll::Ready(()),
        Poll::Ready(_) => panic!("nobody answered yet"),
    })
    .await;
    let answering = std::thread::spawn(move || {
        let mut conn = Conn::new(core, Duration::from_secs(60), MAX_QUESTION);
        let mut numbers = Vec::new();
        while numbers.len() < 3 {
            if let ToCore::Speaker { number } = conn.receive_with_descriptors::<ToCore>().unwrap().0 {
                numbers.push(number);
            }
        }
        for number in numbers.into_iter().rev() {
            let pid = u32::try_from(number).unwrap();
            let answer = Answer::Speaker(PeerIdentity { pid, uid: 0, container: None });
            conn.send(&ToWorker::Answer { number, answer }).unwrap();
        }
    });
    // It is on its way before it is given up.
    tokio::task::yield_now().await;
    let given_up = tokio::spawn({
        let host = host.clone();
        let (peer, _) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(given_up);
        async move { host.speaker(peer.as_fd()).await.unwrap().unwrap().pid }
    });
    let other = host.speaker(peer.as_fd()).await.unwrap().unwrap().pid;
    let mut pids = [given_up.await.unwrap(), other];
    pids.sort_unstable();
    assert_eq!(pids, [2, 3], "not the first's");
    answering.join().unwrap();
}

#[tokio::test]
async fn a_question_on_a_run_s_line_does_not_wait_for_its_reports() {
    let (ours, core) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let host = CoreClient::default();
    assert!(host.report_to(UnixStream::from_std(ours).unwrap()));
    let said = AgentEvent::IntentEnded { id: "i".to_owned(), error: None, moment: 0 };
    (0..QUEUE).for_each(|_| host.report(&said));
    assert_eq!(host.counts().lost_reports.load(Ordering::Relaxed), 0, "the control");
    host.report(&said);
    assert_eq!(host.counts().lost_reports.load(Ordering::Relaxed), 1);
    let heard = tokio::task::spawn_blocking(move || {
        let mut core = Conn::new(core, Duration::from_secs(60), MAX_QUESTION);
        let ToCore::DeniedSoFar { number } = core.receive().unwrap() else { panic!("not the question") };
        core.send(&ToWorker::Answer { number, answer: Answer::DeniedSoFar(3) }).unwrap();
        // What is lost is on record before what waited.
        let ToCore::Report(first) = core.receive().unwrap() else { panic!("no report") };
        let ToCore::Report(second) = core.receive().unwrap() else { panic!("no report") };
        let reports = [first, second].map(|json| serde_json::from_str::<AgentEvent>(json.get()).unwrap());
        // Open until the answer is heard: who writes to a closed line reads no more of it.
        (reports, core)
    });
    assert_eq!(host.denied_so_far().await, Ok(3));
    let ([first, second], _core) = heard.await.unwrap();
    assert!(matches!(first, AgentEvent::Lost { count: 1, to: Some(_), .. }), "{first:?}");
    assert_eq!(second, said);
}

#[test]
fn a_call_is_on_record_whatever_the_files_are_called_that_it_names() {
    let said = |input: String, paths: Vec<String>| {
        let call = AgentEvent::Call {
            key: "k".into(),
            id: "i".into(),
            renamed: None,
            intent: None,
            tool: "Write".into(),
            server: None,
            input,
            paths: Some(paths),
            moment: 1,
        };
        let Some(ToCore::Report(json)) = report_of(&call) else { return None };
        assert!(json.get().len() <= MAX_REPORT);
        match serde_json::from_str(json.get()).unwrap() {
            AgentEvent::Call { paths, .. } => Some(paths),
            other => panic!("{other:?}"),
        }
    };
    let controls = |count: usize| "\u{1}".repeat(count);
    let plain = vec!["x".repeat(MAX_PATHS_BYTES)];
    assert_eq!(said(controls(MAX_TEXT), vec!["/a".into()]), Some(Some(vec!["/a".into()])), "the control");
    assert_eq!(said("{}".into(), plain.clone()), Some(Some(plain)));
    assert_eq!(said(controls(MAX_TEXT), vec![controls(MAX_PATHS_BYTES)]), Some(None));
    assert_eq!(said(controls(MAX_REPORT), Vec::new()), None, "no worker cuts a text like that");
}
