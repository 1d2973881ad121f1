//! The login that a session uses where no other credential is given (`ringfence mcp login`). A process beside this one keeps it, and
//! renews it: here is the access token alone.

use crate::config::Config;
use ringfence_base::error::chain;
use ringfence_credentials::Secret;
use ringfence_process::listen_fds;
use ringfence_wire::{
    conn::Conn,
    mcp_login::{LINK, MAX, Token, Wanted},
};
use std::{
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long the keeper may take: a renewal, behind another session's.
const PATIENCE: Duration = Duration::from_secs(600);
/// For how long a refusal that nothing came of stands for the next ones.
const PAUSE: Duration = Duration::from_secs(10);

/// Which token that was, as the keeper has it.
pub(super) type Number = u64;

/// The keeper, and the token that it gave last.
#[derive(Clone)]
pub(super) struct Login(Arc<Shared>);

struct Shared {
    conn: Mutex<Conn>,
    current: Mutex<Current>,
    /// One asks at a time, and who waited has what the one before got.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct Current {
    token: Secret,
    number: Number,
    /// When another is to be asked for, and when this one is over.
    due: Option<Instant>,
    over: Option<Instant>,
    /// When none was to be had last, and why.
    failed: Option<(Instant, String)>,
}

impl Current {
    fn given(&self) -> (Secret, Number) {
        (self.token.clone(), self.number)
    }

    fn is_due(&self) -> bool {
        is_past(self.due)
    }

    fn is_over(&self) -> bool {
        is_past(self.over)
    }

    /// Why another was not to be had for who began to wait then.
    fn failed_since(&self, then: Instant) -> Option<&str> {
        self.failed.as_ref().filter(|(last, _)| *last >= then).map(|(_, why)| why.as_str())
    }

    /// Why another was not to be had a moment ago.
    fn just_failed(&self) -> Option<&str> {
        self.failed.as_ref().filter(|(last, _)| last.elapsed() < PAUSE).map(|(_, why)| why.as_str())
    }
}

fn is_past(time: Option<Instant>) -> bool {
    time.is_some_and(|time| Instant::now() >= time)
}

impl Login {
    /// Takes the link to the keeper, and has the first token of it. Before this process is confined, and while it has one thread.
    ///
    /// # Errors
    /// In words.
    pub(super) fn start(config: &Config) -> Result<Self, String> {
        let link = listen_fds::inherited(LINK).map(UnixStream::from);
        let link = link.filter(|link| link.peer_addr().is_ok());
        let link = link.ok_or("there is no link to the process that keeps the login")?;
        Self::over(link, config.server_of_login(), config.is_secret)
    }

    fn over(link: UnixStream, server: String, is_secret: bool) -> Result<Self, String> {
        let mut conn = Conn::new(link, PATIENCE, MAX);
        let current = Mutex::new(asked(&mut conn, &Wanted { server, is_secret, refused: None })?);
        Ok(Self(Arc::new(Shared { conn: Mutex::new(conn), current, turn: Arc::default() })))
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token; another, where that one is over. Shortly before that, another is asked for meanwhile, and nobody waits.
    ///
    /// # Errors
    /// In words: there is none any more.
    pub(super) async fn token(&self) -> Result<(Secret, Number), String> {
        if self.current().is_over() {
            let begun = Instant::now();
            let _turn = self.0.turn.lock().await;
            if let Some(why) = self.current().failed_since(begun) {
                return Err(why.to_owned());
            }
            if self.current().is_over() {
                self.renew(None).await?;
            }
        } else if self.current().is_due()
            && self.current().just_failed().is_none()
            && let Ok(turn) = Arc::clone(&self.0.turn).try_lock_owned()
        {
            let login = self.clone();
            tokio::spawn(async move {
                let _turn = turn;
                let _ = login.renew(None).await;
            });
        }
        Ok(self.current().given())
    }

    /// The token as it is: for the end of a session, in which no renewal may begin.
    pub(super) fn at_hand(&self) -> Secret {
        self.current().token.clone()
    }

    /// Another token than this one, which the server refused.
    ///
    /// # Errors
    /// In words: there is none.
    pub(super) async fn other_than(&self, number: Number) -> Result<(Secret, Number), String> {
        let _turn = self.0.turn.lock().await;
        if self.current().number == number {
            if let Some(why) = self.current().just_failed() {
                return Err(why.to_owned());
            }
            self.renew(Some(number)).await?;
        }
        Ok(self.current().given())
    }

    /// Whose request is called off meanwhile leaves the answer to the next one.
    async fn renew(&self, refused: Option<Number>) -> Result<(), String> {
        let login = self.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let mut conn = login.0.conn.lock().unwrap_or_else(PoisonError::into_inner);
            // Which server it is, the first one said.
            let asked = asked(&mut conn, &Wanted { server: String::new(), is_secret: false, refused });
            let mut current = login.current();
            match asked {
                Ok(new) => *current = new,
                Err(why) => {
                    current.failed = Some((Instant::now(), why.clone()));
                    return Err(why);
                }
            }
            Ok(())
        });
        asked.await.map_err(|error| error.to_string())?
    }
}

/// Asks the keeper.
fn asked(conn: &mut Conn, wanted: &Wanted) -> Result<Current, String> {
    let gone =
        |error: &dyn std::error::Error| format!("the process that keeps the login is gone: {}", chain(error));
    conn.send(wanted).map_err(|error| gone(&error))?;
    let answer = conn.receive_with_descriptors::<Token>().map_err(|error| gone(&error))?;
    let now = Instant::now();
    match answer {
        (Token::Given { number, due_in, over_in }, descriptors) => {
            let pipe = descriptors.into_iter().next();
            let pipe = pipe.ok_or("the process that keeps the login hands over nothing")?;
            let token = Secret::from_descriptor(pipe).map_err(|error| chain(&error))?;
            let after = |seconds: u64| now.checked_add(Duration::from_secs(seconds));
            Ok(Current {
                token,
                number,
                // Where the time is over already, it is asked again soon, and not for every request.
                due: due_in.and_then(|seconds| after(seconds.max(1))),
                over: over_in.and_then(|seconds| after(seconds.max(1))),
                failed: None,
            })
        }
        (Token::None { why }, _) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::fd::AsFd as _, sync::mpsc, thread};

    const LONG: Duration = Duration::from_secs(600);

    type Answers = mpsc::Sender<Result<&'static str, &'static str>>;

    /// A keeper: what it is asked arrives here, and each answer is what is sent there.
    fn keeper() -> (Login, mpsc::Receiver<Option<u64>>, Answers) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ((tell, asked), (answer, answers)) = (mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            let mut conn = Conn::new(theirs, LONG, MAX);
            let mut number = 0;
            while let Ok(Wanted { refused, .. }) = conn.receive::<Wanted>() {
                tell.send(refused).unwrap();
                match answers.recv() {
                    Ok(Ok(token)) => {
                        let pipe = Secret::from(String::from(token)).pipe().unwrap();
                        let given = Token::Given { number, due_in: Some(3600), over_in: Some(3630) };
                        number += 1;
                        conn.send_with_descriptors(&given, &[pipe.as_fd()]).unwrap();
                    }
                    Ok(Err(why)) => conn.send(&Token::None { why: String::from(why) }).unwrap(),
                    Err(_) => return,
                }
            }
        });
        answer.send(Ok("one")).unwrap();
        let login = Login::over(ours, "https://h.example/mcp".into(), false).unwrap();
        assert_eq!(asked.recv().unwrap(), None);
        (login, asked, answer)
    }

    fn waits_at_last<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn one_that_is_nearly_over_is_given_while_another_is_asked_for() {
        let (login, asked, answer) = keeper();
        waits_at_last(async {
            login.current().due = Some(Instant::now());
            // Nobody answers yet, and nobody waits.
            for _ in 0..3 {
                assert_eq!(login.token().await.unwrap().0.expose(), "one");
            }
            answer.send(Ok("two")).unwrap();
            while login.token().await.unwrap().0.expose() == "one" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(asked.try_iter().count(), 1, "they asked once");
            // Where there is none, the next ask again after a while only.
            login.current().due = Some(Instant::now());
            answer.send(Err("none")).unwrap();
            while login.current().failed.is_none() {
                assert_eq!(login.token().await.unwrap().0.expose(), "two");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(login.token().await.unwrap().0.expose(), "two");
            // One that is over is waited for.
            login.current().over = Some(Instant::now());
            answer.send(Ok("three")).unwrap();
            assert_eq!(login.token().await.unwrap().0.expose(), "three");
            assert_eq!(asked.try_iter().count(), 2);
        });
    }

    #[test]
    fn who_waits_gets_what_the_one_before_got() {
        let (login, asked, answer) = keeper();
        login.current().over = Some(Instant::now());
        waits_at_last(async {
            // Nobody has an endpoint that hangs asked once for each request.
            answer.send(Err("none")).unwrap();
            let (one, two) = tokio::join!(login.token(), login.token());
            assert_eq!((one.unwrap_err(), two.unwrap_err()), ("none".into(), "none".into()));
            assert_eq!(asked.try_iter().count(), 1);
            // Who comes later asks again.
            answer.send(Ok("two")).unwrap();
            let (one, two) = tokio::join!(login.token(), login.token());
            assert_eq!((one.unwrap().0.expose(), two.unwrap().0.expose()), ("two", "two"));
            assert_eq!(asked.try_iter().count(), 1);
        });
    }

    #[test]
    fn the_end_of_a_session_begins_no_renewal() {
        let (login, asked, answer) = keeper();
        {
            let mut current = login.current();
            (current.due, current.over) = (Some(Instant::now()), Some(Instant::now()));
        }
        assert_eq!(login.at_hand().expose(), "one");
        // The control: any other request does.
        answer.send(Ok("two")).unwrap();
        waits_at_last(async { assert_eq!(login.token().await.unwrap().0.expose(), "two") });
        assert_eq!((asked.try_iter().count(), login.at_hand().expose()), (1, "two"));
    }
}
