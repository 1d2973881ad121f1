//! How many questions there are, what they are answered, and what of that is known for a while.

use super::*;
use ringfence_wire::egress::{NameOptions, NameRule, Names};
use std::{future::Future, pin::Pin, task::Poll};
use tokio::net::TcpListener;

const PATIENCE: Duration = Duration::from_secs(60);

fn place(name: &str) -> Place {
    (name.to_owned(), 443)
}

fn decision(question: u64, approve: bool, stands: bool) -> EgressDecision {
    EgressDecision { question, approve, by: "uid 0\n".into(), stands, full: false }
}

fn reason(answer: Answer) -> String {
    answer.unwrap_err().reason
}

type Asking<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// Asks, and waits then: nobody has answered yet.
async fn asks<'a>(questions: &'a Questions, place: &'a Place) -> Asking<'a> {
    let mut asking: Asking<'a> = Box::pin(questions.answer(place, PATIENCE));
    std::future::poll_fn(|context| {
        assert!(asking.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    asking
}

fn numbers(said: &[EgressAsk]) -> Vec<(u64, bool)> {
    let number = |ask: &EgressAsk| match ask {
        EgressAsk::Ask { question, .. } => (*question, true),
        EgressAsk::Gone { question } => (*question, false),
    };
    said.iter().map(number).collect()
}

#[tokio::test]
async fn connections_to_one_name_and_port_are_one_question() {
    let questions = Questions::new(Instant::now());
    let (a, other_port) = (place("a.org"), ("a.org".to_owned(), 80));
    let first = asks(&questions, &a).await;
    let second = asks(&questions, &a).await;
    let other = asks(&questions, &other_port).await;
    assert_eq!(numbers(&questions.take()), [(1, true), (2, true)]);
    questions.decided(&decision(1, true, false));
    let approved = Ok(Approval { by: Some("uid 0?".into()) });
    assert_eq!((first.await, second.await), (approved.clone(), approved));
    questions.decided(&decision(2, false, false));
    assert_eq!(
        reason(other.await),
        "no rule of the profile grants a.org at port 80, and it was denied by uid 0?"
    );
    assert!(questions.take().is_empty(), "the auditor knows");
    questions.decided(&decision(1, true, false));
    questions.decided(&decision(77, true, true));
    let again = asks(&questions, &a).await;
    assert_eq!(numbers(&questions.take()), [(3, true)], "once is once");
    drop(again);
    assert!(questions.take().is_empty(), "it stays, though its client gave up");
    assert_eq!(questions.state.borrow().held, 0);
}

#[tokio::test]
async fn whoever_tries_again_is_answered_what_was_said_meanwhile() {
    let questions = Questions::new(Instant::now());
    let (a, b) = (place("a.org"), place("b.org"));
    drop(asks(&questions, &a).await);
    drop(asks(&questions, &b).await);
    assert_eq!(numbers(&questions.take()), [(1, true), (2, true)]);
    let again = asks(&questions, &a).await;
    assert!(questions.take().is_empty(), "the same question: its id on somebody's screen counts");
    drop(again);
    questions.decided(&decision(1, true, false));
    questions.decided(&decision(2, false, false));
    assert!(questions.answer(&a, PATIENCE).await.is_ok(), "for whoever comes next");
    drop(asks(&questions, &a).await);
    assert_eq!(numbers(&questions.take()), [(3, true)], "and for nobody after that");
    assert!(reason(questions.answer(&b, PATIENCE).await).ends_with("denied by uid 0?"));

    questions.decided(&decision(3, true, false));
    let late = Instant::now() + KEPT_FOR + Duration::from_secs(1);
    assert!(matches!(questions.begin(&a, PATIENCE, late), Begun::Waits(_)), "it came too late");
    assert_eq!(numbers(&questions.take()), [(4, true)]);
}

#[tokio::test]
async fn a_question_that_nobody_waits_for_is_over_in_time_and_makes_room_for_others() {
    const SOON: Duration = Duration::from_millis(100);
    let questions = Questions::new(Instant::now());
    let a = place("a.org");
    {
        let asking = questions.answer(&a, SOON);
        tokio::pin!(asking);
        std::future::poll_fn(|context| Poll::Ready(asking.as_mut().poll(context).is_pending())).await;
    }
    assert_eq!(numbers(&questions.take()), [(1, true)]);
    questions.wait().await;
    assert_eq!(numbers(&questions.take()), [(1, false)], "its time is up");

    let names: Vec<Place> = (0..MOST_QUESTIONS).map(|at| place(&format!("{at}.org"))).collect();
    let mut held = Vec::new();
    let start = Instant::now() + Duration::from_secs(3600);
    for name in &names {
        let Begun::Waits(question) = questions.begin(name, PATIENCE, start) else { panic!("{name:?}") };
        held.push(Waits { questions: &questions, question });
    }
    questions.take();
    let later = start + Duration::from_secs(10);
    let begun = questions.begin(&a, PATIENCE, later);
    assert!(matches!(begun, Begun::Known(Err(refusal)) if refusal.cause == EgressCause::Full));
    held.remove(3);
    let Begun::Waits(question) = questions.begin(&a, PATIENCE, later) else { panic!("there is room") };
    held.push(Waits { questions: &questions, question });
    assert_eq!(numbers(&questions.take()), [(5, false), (18, true)]);
}

#[tokio::test]
async fn no_room_is_nobody_s_no() {
    let questions = Questions::new(Instant::now());
    let a = place("a.org");
    let asking = asks(&questions, &a).await;
    questions.decided(&EgressDecision { full: true, ..decision(1, false, false) });
    let refusal = asking.await.unwrap_err();
    assert_eq!(refusal.cause, EgressCause::Full);
    assert!(refusal.reason.ends_with("nobody was asked: uid 0?"), "{}", refusal.reason);
    questions.take();
    let soon = Instant::now() + FULL_FOR + Duration::from_millis(100);
    assert!(matches!(questions.begin(&a, PATIENCE, soon), Begun::Waits(_)), "asked again in a moment");
}

#[tokio::test]
async fn nobody_who_answers_is_a_no_and_asked_again() {
    const SOON: Duration = Duration::from_millis(50);
    let questions = Questions::new(Instant::now());
    let a = place("a.org");
    let soon = questions.answer(&a, SOON).await;
    assert!(reason(soon).ends_with("and nobody approved it within 0 s"));
    assert!(questions.take().is_empty(), "nobody was told of it");
    let told = async {
        questions.wait().await;
        numbers(&questions.take())
    };
    let (late, told) = tokio::join!(questions.answer(&a, SOON), told);
    assert_eq!((reason(late).ends_with("within 0 s"), told), (true, vec![(2, true)]));
    assert_eq!(numbers(&questions.take()), [(2, false)], "it is taken away");
}

#[tokio::test]
async fn a_no_is_known_for_a_while_and_so_is_what_stands() {
    let questions = Questions::new(Instant::now());
    let (a, b) = (place("a.org"), place("b.org"));
    let (yes, no) = (asks(&questions, &a).await, asks(&questions, &b).await);
    questions.decided(&decision(1, true, true));
    questions.decided(&decision(2, false, false));
    assert!(yes.await.is_ok() && no.await.is_err());
    questions.take();
    assert!(questions.answer(&a, PATIENCE).await.is_ok());
    assert!(questions.answer(&b, PATIENCE).await.is_err());
    assert!(questions.take().is_empty(), "nobody is asked");
    let later = |lasts| Instant::now() + lasts + Duration::from_secs(1);
    for (place, lasts) in [(&a, APPROVED_FOR), (&b, DENIED_FOR)] {
        assert!(matches!(questions.begin(place, PATIENCE, later(lasts)), Begun::Waits(_)), "{place:?}");
    }
}

#[tokio::test]
async fn whoever_makes_up_names_asks_few_questions() {
    let begun = Instant::now();
    let questions = Questions::new(begun);
    let names: Vec<Place> = (0..100).map(|at| place(&format!("{at}.evil.org"))).collect();
    let begin = |place: &Place, now| questions.begin(place, PATIENCE, now);
    let asked = names.iter().filter(|name| matches!(begin(name, begun), Begun::Waits(_))).count();
    assert_eq!((asked, questions.take().len()), (MOST_QUESTIONS, MOST_QUESTIONS));
    // As many connections as may wait, for a question that is there.
    let more = (0..200).filter(|_| matches!(begin(&names[0], begun), Begun::Waits(_))).count();
    assert_eq!(more, MOST_HELD - MOST_QUESTIONS);
    assert!(questions.take().is_empty());

    // Each that is given up at once makes room, and comes no faster for that.
    let questions = Questions::new(begun);
    let tried = |second: u64| {
        let now = begun + Duration::from_secs(second);
        let names = (0..1000).map(|at| place(&format!("{second}-{at}.evil.org")));
        let asked = names.filter(|name| match questions.begin(name, PATIENCE, now) {
            Begun::Waits(question) => {
                questions.take();
                drop(Waits { questions: &questions, question });
                true
            }
            Begun::Known(answer) => {
                assert!(reason(answer).contains("too many"));
                false
            }
        });
        asked.count()
    };
    assert_eq!((tried(0), tried(1), tried(8)), (MOST_QUESTIONS, 0, 2));
    let waits = questions.state.borrow().to_say.len();
    assert!(waits <= MOST_TO_SAY, "{waits}");
}

#[tokio::test]
async fn what_stands_is_asked_for_again_as_often_as_it_is_used() {
    let begun = Instant::now();
    let questions = Questions::new(begun);
    let names: Vec<Place> = (0..100).map(|at| place(&format!("{at}.org"))).collect();
    for name in &names {
        let Begun::Waits(question) = questions.begin(name, PATIENCE, begun) else { panic!("{name:?}") };
        questions.decided(&decision(question.number, true, true));
        drop(Waits { questions: &questions, question });
    }
    // All at once, once they are not known any more.
    let later = Instant::now() + APPROVED_FOR;
    for name in &names[..MOST_HELD] {
        assert!(matches!(questions.begin(name, PATIENCE, later), Begun::Waits(_)), "{name:?}");
    }
    assert!(
        matches!(questions.begin(&names[0], PATIENCE, later), Begun::Known(Err(_))),
        "as many as may wait"
    );
}

#[tokio::test]
async fn what_stands_for_many_places_takes_no_room_from_other_answers() {
    let begun = Instant::now();
    let questions = Questions::new(begun);
    // An exception for a host is one for all of its ports.
    for port in 1..=1000 {
        let place = ("many.org".to_owned(), port);
        let Begun::Waits(question) = questions.begin(&place, PATIENCE, begun) else { panic!("{port}") };
        questions.decided(&decision(question.number, true, true));
        drop(Waits { questions: &questions, question });
    }
    let (a, b) = (place("a.org"), place("b.org"));
    let (no, yes) = (asks(&questions, &a).await, asks(&questions, &b).await);
    questions.decided(&decision(1001, false, false));
    assert!(no.await.is_err());
    drop(yes);
    questions.decided(&decision(1002, true, false));
    while !questions.take().is_empty() {}
    assert!(reason(questions.answer(&a, PATIENCE).await).ends_with("denied by uid 0?"));
    assert!(questions.answer(&b, PATIENCE).await.is_ok(), "nor who said yes to one that has left");
    assert!(questions.take().is_empty());
    let state = questions.state.borrow();
    assert!(state.known.len() <= MOST_KNOWN && state.stood.len() <= MOST_STOOD);
}

#[tokio::test]
async fn what_stood_is_asked_about_once_more_and_then_as_anything_else() {
    let begun = Instant::now();
    let questions = Questions::new(begun);
    let a = place("a.org");
    let Begun::Waits(question) = questions.begin(&a, PATIENCE, begun) else { panic!("nobody knows") };
    questions.decided(&decision(question.number, true, true));
    drop(Waits { questions: &questions, question });
    let later = Instant::now() + APPROVED_FOR;
    let others: Vec<Place> = (0..MOST_QUESTIONS).map(|at| place(&format!("{at}.org"))).collect();
    let mut held = Vec::new();
    for other in &others {
        let Begun::Waits(question) = questions.begin(other, PATIENCE, later) else { panic!("{other:?}") };
        held.push(Waits { questions: &questions, question });
    }
    let full = |place: &Place| matches!(questions.begin(place, PATIENCE, later), Begun::Known(Err(refusal)) if refusal.cause == EgressCause::Full);
    assert!(full(&place("new.org")), "the control");
    let Begun::Waits(question) = questions.begin(&a, PATIENCE, later) else { panic!("it stood") };
    // It was revoked.
    questions.decided(&EgressDecision { full: true, ..decision(question.number, false, false) });
    drop(Waits { questions: &questions, question });
    assert!(questions.state.borrow_mut().known.remove(&a).is_some());
    assert!(full(&a), "it does not stand any more");
}

#[tokio::test]
async fn a_policy_that_decides_nothing_of_an_answer_leaves_it() {
    let questions = Questions::new(Instant::now());
    let (a, b) = (place("a.org"), place("b.org"));
    let (no, other) = (asks(&questions, &a).await, asks(&questions, &b).await);
    questions.decided(&decision(1, false, false));
    questions.decided(&decision(2, false, false));
    assert!(no.await.is_err() && other.await.is_err());
    questions.take();
    let options = NameOptions { ask: Some(60), ..NameOptions::default() };
    let denies = vec![NameRule { host: "b.org".into(), port: None, tcp: false, rule: 0 }];
    let names = Names { options, denies, ..Names::default() };
    questions.reconsider(&Policy { names, audit: false, host_network: true });
    assert!(reason(questions.answer(&a, PATIENCE).await).ends_with("denied by uid 0?"), "a moment ago");
    assert!(questions.take().is_empty());
    assert!(!questions.state.borrow().known.contains_key(&b), "the profile decides that one");
}

#[tokio::test]
async fn another_policy_answers_what_it_decides() {
    let questions = Questions::new(Instant::now());
    let places = ["granted.org", "denied.org", "still.org"].map(place);
    let mut waiting = Vec::new();
    for place in &places {
        waiting.push(asks(&questions, place).await);
    }
    questions.take();
    let rule = |host: &str| NameRule { host: host.into(), port: None, tcp: false, rule: 0 };
    let options = NameOptions { ask: Some(60), ..NameOptions::default() };
    let names = Names {
        rules: vec![rule("granted.org")],
        denies: vec![rule("denied.org")],
        options,
        ..Names::default()
    };
    let mut policy = Policy { names, audit: false, host_network: true };
    questions.reconsider(&policy);
    assert_eq!(numbers(&questions.take()), [(1, false), (2, false)]);
    let still = waiting.pop().unwrap();
    assert_eq!(waiting.pop().unwrap().await.unwrap_err().cause, EgressCause::Denied);
    assert_eq!(waiting.pop().unwrap().await, Ok(Approval { by: None }));
    questions.repeat(Instant::now());
    assert_eq!(numbers(&questions.take()), [(3, true)], "on another line, what is open");
    policy.names.options.ask = None;
    questions.reconsider(&policy);
    assert_eq!(still.await.unwrap_err().cause, EgressCause::NotGranted, "nobody is asked any more");
    let last = asks(&questions, &places[2]).await;
    questions.end_all("the worker ends");
    assert_eq!(last.await.unwrap_err().cause, EgressCause::Revoked);
}

#[tokio::test]
async fn a_client_that_goes_is_noticed_and_its_question_stays() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (served, _) = listener.accept().await.unwrap();
    // Also one that has said more than it was asked for.
    client.writable().await.unwrap();
    client.try_write(b"more").unwrap();
    let questions = Questions::new(Instant::now());
    let ends = async {
        questions.wait().await;
        assert_eq!(numbers(&questions.take()), [(1, true)]);
        drop(client);
    };
    let (answer, ()) = tokio::join!(questions.ask(("a.org", 443), PATIENCE, &served), ends);
    assert!(reason(answer).contains("gave up"));
    assert!(questions.take().is_empty());
    assert_eq!((questions.state.borrow().held, questions.state.borrow().open.len()), (0, 1));
}

#[tokio::test]
async fn what_was_approved_once_is_not_for_a_client_that_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (served, _) = listener.accept().await.unwrap();
    let questions = Questions::new(Instant::now());
    let a = place("a.org");
    let asking = questions.answer_to(&a, PATIENCE, Some(&served));
    let decides = async {
        questions.wait().await;
        assert_eq!(numbers(&questions.take()), [(1, true)]);
        drop(client);
        // It is noticed by whoever looks; here nobody has yet.
        while !has_closed(Some(&served)).await {
            sleep(Duration::from_millis(1)).await;
        }
        questions.decided(&decision(1, true, false));
    };
    let (answer, ()) = tokio::join!(asking, decides);
    assert!(reason(answer).contains("gave up"));
    let again = questions.answer_to(&a, PATIENCE, Some(&served)).await;
    assert!(reason(again).contains("gave up"), "it is kept, and not for one that has left either");
    assert!(questions.answer(&a, PATIENCE).await.is_ok(), "it is for the next one");
    assert!(questions.state.borrow().known.is_empty(), "and for that one alone");
}
