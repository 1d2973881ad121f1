//! HTML to Markdown. The HTML is hostile: it may nest without end, make a parser build a million nodes out of a page, or
//! take quadratic time. So it is parsed in small pieces into a tree that is looked at after each, and parsing ends where
//! the tree gets too deep or too large or the time is up; what was read until then is the page, and the result
//! names what is missing.

use super::{
    page::{Page, PageError},
    tree::{Bounds, Cut, parse},
};
use dom_query::Document;
use dom_smoothie::{Config, Readability, TextMode};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout_at,
};
use url::Url;

/// How many pages are read at a time. One whose time is up may go on in its thread for a while: it holds its permit.
pub const AT_ONCE: usize = 4;

/// The stack of a thread that reads a page, bytes: its Markdown is written by recursion, as deep as the tree may be.
pub const STACK: usize = 16 << 20;

/// How long a page's main content is looked for. If it takes longer, the whole page is the result.
pub const MAIN_TIME: Duration = Duration::from_secs(5);

/// Bytes and nodes of the largest page whose main content is looked for, which takes quadratic time in the worst case: a
/// few seconds at these sizes. What is larger is hardly one article.
const MAIN_BYTES: usize = 2 << 20;
const MAIN_NODES: usize = 100_000;

/// Characters of a title that are returned.
const TITLE: usize = 500;

/// Characters below which a page's "main content" is taken for a mistake, and the whole page is read.
const TOO_SHORT: usize = 200;

/// A page that is being read.
pub type PageFuture<'a> = Pin<Box<dyn Future<Output = Result<Page, PageError>> + Send + 'a>>;

/// Who reads HTML. It is hostile, and so may be what a library makes of it: a program that must not end with it has it
/// read by another process, which calls [`read`].
pub trait HtmlReader: Send + Sync {
    /// Reads a page that came from `url`, within `time`. Dropped before its end, it stops as soon as it can.
    fn read(&self, html: String, url: Url, time: Duration) -> PageFuture<'_>;
}

/// Reads pages in threads of this process: a panic, without unwinding, ends it; so does a lack of memory.
#[derive(Debug, Clone)]
pub struct ThreadReader {
    permits: Arc<Semaphore>,
}

impl Default for ThreadReader {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl HtmlReader for ThreadReader {
    fn read(&self, html: String, url: Url, time: Duration) -> PageFuture<'_> {
        Box::pin(async move {
            let until = tokio::time::Instant::now() + time;
            // The whole page, then its main content.
            let (sender, mut receiver) = mpsc::channel(2);
            let reading = async {
                let permit = self.permits.clone().acquire_owned().await.map_err(|_| PageError::Failed)?;
                let work = move || {
                    // In a program that ends at a panic this catches nothing.
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        read(&html, &url, |page| drop(sender.blocking_send(page)));
                    }));
                    drop((permit, sender));
                };
                let thread = thread::Builder::new().name("html".into()).stack_size(STACK);
                thread.spawn(work).map_err(PageError::Thread)?;
                receiver.recv().await.ok_or(PageError::Failed)
            };
            let page = timeout_at(until, reading).await.unwrap_or(Err(PageError::Slow))?;
            let until = until.min(tokio::time::Instant::now() + MAIN_TIME);
            let main = timeout_at(until, receiver.recv()).await;
            Ok(main.ok().flatten().unwrap_or(page))
        })
    }
}

/// Reads a page that came from `url`: `emit` gets all of it, and then, if some stands out, its main content, which may
/// take quadratic time. Call it where [`STACK`] bytes of stack are left; it may panic, and take memory in proportion to
/// the page.
pub fn read(html: &str, url: &Url, mut emit: impl FnMut(Page)) {
    let (page, document) = whole_page(html, url);
    let length = page.markdown.chars().count();
    let (title, cut) = (page.title.clone(), page.cut.clone());
    emit(page);
    if let Some(markdown) = document.and_then(|document| main_content(document, length)) {
        emit(Page { title, markdown, cut });
    }
}

/// All of a page; and its tree, if it is small enough to look for its main content.
fn whole_page(html: &str, url: &Url) -> (Page, Option<Document>) {
    let bounds = Bounds::default();
    let (document, cut) = parse(html, url, bounds);
    let title = document.select_single("title").text();
    let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
    let title: String = title.chars().take(TITLE).collect();
    let markdown = document.body().map(|body| body.md(None)).unwrap_or_default();
    let page = Page {
        title: (!title.is_empty()).then_some(title),
        markdown: markdown.trim().to_owned(),
        cut: cut.map(|cut| describe(cut, bounds)),
    };
    let small = html.len() <= MAIN_BYTES && document.tree.len() <= MAIN_NODES;
    (page, small.then_some(document))
}

/// A page's main content, if some stands out. `whole`: the characters of all of it.
fn main_content(document: Document, whole: usize) -> Option<String> {
    // No URL, as links were made absolute before; no JSON-LD, as nothing of it is shown.
    let config = Config { text_mode: TextMode::Markdown, disable_json_ld: true, ..Config::default() };
    let article = Readability::with_document(document, None, Some(config)).ok()?.parse().ok()?;
    let content = article.text_content.trim();
    (content.chars().count() >= TOO_SHORT.min(whole)).then(|| content.to_owned())
}

fn describe(cut: Cut, bounds: Bounds) -> String {
    match cut {
        Cut::Depth => {
            format!("its HTML nests deeper than {}: what comes after that is left out", bounds.depth)
        }
        Cut::Nodes => {
            format!("its HTML has more than {} parts: what comes after those is left out", bounds.nodes)
        }
        Cut::Time => "its HTML takes too long to read: what comes after that is left out".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAGS: [&str; 40] = [
        "<p>",
        "</p>",
        "<div class=article>",
        "</div>",
        "<b>",
        "</b>",
        "<i>",
        "</i>",
        "<a href='x'>",
        "</a>",
        "<table>",
        "</table>",
        "<tr>",
        "<td>",
        "<th>",
        "</td>",
        "<ul>",
        "</ul>",
        "<ol start=-1>",
        "<li>",
        "<pre>",
        "</pre>",
        "<code>",
        "</code>",
        "<br>",
        "<hr>",
        "<blockquote>",
        "<h1>",
        "</h1>",
        "<title>",
        "<script>",
        "</script>",
        "<svg>",
        "<math>",
        "<template>",
        "</template>",
        "<select>",
        "<img alt='|`' src=y>",
        "<noscript>",
        "<font color=red>",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whatever tags are thrown at it in whatever order, it comes to an end without a panic.
        #[test]
        fn reads_any_soup(parts in prop::collection::vec((0..TAGS.len(), "[a-z,. |`*\\[\\]&;#<>\u{e9}\u{1f600}]{0,12}"), 0..120)) {
            let html: String = parts.iter().map(|(tag, text)| format!("{}{text}", TAGS[*tag])).collect();
            let (page, document) = whole_page(&html, &Url::parse("http://a.example/").unwrap());
            main_content(document.unwrap(), page.markdown.chars().count());
        }
    }
}
