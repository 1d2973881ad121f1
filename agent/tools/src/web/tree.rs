//! HTML to a tree that is never deeper or larger than its bounds, with absolute links.

use dom_query::{Document, NodeId};
use html5ever::{
    Attribute, ParseOpts, QualName, local_name,
    tendril::{StrTendril, TendrilSink},
    tree_builder::{ElementFlags, NodeOrText, QuirksMode, TreeBuilderOpts, TreeSink},
};
use std::{
    borrow::Cow,
    cell::{Cell, Ref, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};
use url::Url;

/// Bytes between two looks at the bounds. A piece cannot do much more harm than the tree's depth allows: what one tag
/// makes a parser do is bounded by how many elements are open.
const PIECE: usize = 512;

/// Bytes that links may grow by, over a whole page, when they are made absolute.
const LINKS: usize = 4 << 20;

/// Lists and quotes within one another that are written as such: each indents every line of what it holds.
const INDENTS: usize = 12;

/// The elements that indent.
const INDENTING: [&str; 3] = ["blockquote", "ol", "ul"];

/// How far a tree may grow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Elements within one another.
    pub(super) depth: usize,
    /// Elements, texts and comments.
    pub(super) nodes: usize,
    /// When to stop.
    pub(super) until: Instant,
}

impl Default for Bounds {
    /// Pages that people wrote stay far below: Chromium flattens what nests deeper than 512, and the HTML standard
    /// itself, on one page, has some 400,000 nodes.
    fn default() -> Self {
        Self { depth: 512, nodes: 500_000, until: Instant::now() + Duration::from_secs(5) }
    }
}

/// Which bound was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Depth,
    Nodes,
    Time,
}

/// The tree of `html`, up to where it met a bound.
pub(super) fn parse(html: &str, url: &Url, bounds: Bounds) -> (Document, Option<Cut>) {
    let sink = BoundedSink {
        document: Document::default(),
        bounds,
        deepest: Cell::new(0),
        base: RefCell::new(url.clone()),
        based: Cell::new(false),
        links: Cell::new(0),
    };
    let opts = ParseOpts {
        // What scripts would replace is what there is to read.
        tree_builder: TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() },
        ..ParseOpts::default()
    };
    let mut parser = html5ever::parse_document(sink, opts);
    let mut rest = html;
    let mut cut = None;
    while !rest.is_empty() && cut.is_none() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE));
        parser.process(StrTendril::from_slice(piece));
        rest = after;
        cut = parser.tokenizer.sink.sink.exceeded();
    }
    let document = parser.finish();
    let removed = flatten(&document, bounds);
    (document, cut.or(removed.then_some(Cut::Depth)))
}

/// A document that counts what it is made of while it grows.
struct BoundedSink {
    document: Document,
    bounds: Bounds,
    deepest: Cell<usize>,
    /// What links are relative to.
    base: RefCell<Url>,
    /// Whether the page had a `base` already: only the first counts.
    based: Cell<bool>,
    /// Bytes that links have grown by.
    links: Cell<usize>,
}

/// A node, and how deep it lies. What is below it is not updated when it moves: a parser moves what it has built by a level
/// at a time, for each formatting element that is open, so a tree is at most twice as deep as is known here.
#[derive(Clone)]
struct Handle {
    node: NodeId,
    depth: Rc<Cell<usize>>,
}

impl BoundedSink {
    fn exceeded(&self) -> Option<Cut> {
        if self.deepest.get() > self.bounds.depth {
            return Some(Cut::Depth);
        }
        if self.document.tree.len() > self.bounds.nodes {
            return Some(Cut::Nodes);
        }
        (Instant::now() > self.bounds.until).then_some(Cut::Time)
    }

    /// What the document takes for `child`, which comes to lie `depth` deep.
    fn place_at(&self, child: NodeOrText<Handle>, depth: usize) -> NodeOrText<NodeId> {
        match child {
            NodeOrText::AppendText(text) => NodeOrText::AppendText(text),
            NodeOrText::AppendNode(handle) => {
                handle.depth.set(depth);
                self.deepest.set(self.deepest.get().max(depth));
                NodeOrText::AppendNode(handle.node)
            }
        }
    }

    /// Makes the links of an element absolute, and takes out those that lead nowhere a reader could go.
    fn link(&self, name: &QualName, attrs: &mut Vec<Attribute>) {
        if name.local == local_name!("base") {
            let href = attrs.iter().find(|attr| attr.name.local == local_name!("href"));
            let base = href.and_then(|href| self.base.borrow().join(&href.value).ok());
            if let Some(base) = base.filter(|base| matches!(base.scheme(), "http" | "https"))
                && !self.based.replace(true)
            {
                self.base.replace(base);
            }
            attrs.clear();
            return;
        }
        attrs.retain_mut(|attr| {
            if !matches!(attr.name.local, local_name!("href") | local_name!("src")) {
                return true;
            }
            let Ok(url) = self.base.borrow().join(&attr.value) else { return false };
            if !matches!(url.scheme(), "http" | "https" | "mailto" | "tel") {
                return false;
            }
            let grown = self.links.get() + url.as_str().len().saturating_sub(attr.value.len());
            if grown <= LINKS {
                self.links.set(grown);
                attr.value = StrTendril::from_slice(url.as_str());
            }
            true
        });
    }
}

fn new(node: NodeId) -> Handle {
    Handle { node, depth: Rc::default() }
}

impl TreeSink for BoundedSink {
    type Handle = Handle;
    type Output = Document;
    type ElemName<'a> = Ref<'a, QualName>;

    fn finish(self) -> Document {
        self.document
    }

    /// Every page has some.
    fn parse_error(&self, _: Cow<'static, str>) {}

    fn get_document(&self) -> Handle {
        new(self.document.get_document())
    }

    fn elem_name<'a>(&'a self, target: &'a Handle) -> Ref<'a, QualName> {
        self.document.elem_name(&target.node)
    }

    fn create_element(&self, name: QualName, mut attrs: Vec<Attribute>, flags: ElementFlags) -> Handle {
        self.link(&name, &mut attrs);
        new(self.document.create_element(name, attrs, flags))
    }

    /// No reader sees comments: they are all one empty text, so that they take no room.
    fn create_comment(&self, _: StrTendril) -> Handle {
        new(self.document.create_comment(StrTendril::new()))
    }

    fn create_pi(&self, _: StrTendril, _: StrTendril) -> Handle {
        new(self.document.create_comment(StrTendril::new()))
    }

    fn append(&self, parent: &Handle, child: NodeOrText<Handle>) {
        self.document.append(&parent.node, self.place_at(child, parent.depth.get() + 1));
    }

    fn append_based_on_parent_node(
        &self,
        element: &Handle,
        prev_element: &Handle,
        child: NodeOrText<Handle>,
    ) {
        let depth = element.depth.get().max(prev_element.depth.get() + 1);
        let child = self.place_at(child, depth);
        self.document.append_based_on_parent_node(&element.node, &prev_element.node, child);
    }

    fn append_doctype_to_document(&self, name: StrTendril, public_id: StrTendril, system_id: StrTendril) {
        self.document.append_doctype_to_document(name, public_id, system_id);
    }

    fn get_template_contents(&self, target: &Handle) -> Handle {
        Handle { node: self.document.get_template_contents(&target.node), depth: target.depth.clone() }
    }

    fn same_node(&self, x: &Handle, y: &Handle) -> bool {
        x.node == y.node
    }

    fn set_quirks_mode(&self, mode: QuirksMode) {
        self.document.set_quirks_mode(mode);
    }

    fn append_before_sibling(&self, sibling: &Handle, new_node: NodeOrText<Handle>) {
        self.document.append_before_sibling(&sibling.node, self.place_at(new_node, sibling.depth.get()));
    }

    fn add_attrs_if_missing(&self, target: &Handle, attrs: Vec<Attribute>) {
        self.document.add_attrs_if_missing(&target.node, attrs);
    }

    fn remove_from_parent(&self, target: &Handle) {
        self.document.remove_from_parent(&target.node);
    }

    fn reparent_children(&self, node: &Handle, new_parent: &Handle) {
        self.document.reparent_children(&node.node, &new_parent.node);
    }

    fn is_mathml_annotation_xml_integration_point(&self, handle: &Handle) -> bool {
        self.document.is_mathml_annotation_xml_integration_point(&handle.node)
    }
}

/// Makes of lists and quotes that lie in too many others plain divisions, and takes out what lies deeper than any parser
/// should have built, so that whoever writes the tree by recursion has an end. `true`: something was taken out.
fn flatten(document: &Document, bounds: Bounds) -> bool {
    let mut removed = false;
    // The open elements: the node, and how many that indent it is within.
    let mut open = vec![(document.root(), 0)];
    let mut next = document.root().first_child();
    while let Some(node) = next {
        let indents = open.last().map_or(0, |(_, indents)| *indents);
        let indents = indents + usize::from(INDENTING.iter().any(|name| node.has_name(name)));
        if indents > INDENTS && INDENTING.iter().any(|name| node.has_name(name)) {
            node.rename("div");
        }
        if let Some(child) = node.first_child() {
            if open.len() <= 2 * bounds.depth {
                open.push((node, indents.min(INDENTS)));
                next = Some(child);
                continue;
            }
            removed = true;
            while let Some(child) = node.first_child() {
                child.remove_from_parent();
            }
        }
        next = node.next_sibling();
        while next.is_none() {
            let Some((parent, _)) = open.pop() else { break };
            next = parent.next_sibling();
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(html: &str) -> (Document, Option<Cut>) {
        parse(html, &Url::parse("https://a.example/b/c?d").unwrap(), Bounds::default())
    }

    fn depth(document: &Document) -> usize {
        document.root().descendants_it().map(|node| node.ancestors_it(None).count()).max().unwrap_or_default()
    }

    #[test]
    fn ends_where_it_nests_too_deep() {
        for tag in [
            "<div>",
            "<b>",
            "<table><td>",
            "<blockquote>",
            "<font size=1><p>",
            "<svg>",
            "<template>",
            "<select><option>",
        ] {
            let begun = Instant::now();
            let (document, cut) = tree(&format!("<p>before{}after", tag.repeat(100_000)));
            assert!(document.text().contains("before"), "{tag}");
            assert!(depth(&document) <= 2 * Bounds::default().depth + 2, "{tag}: {}", depth(&document));
            assert!(cut.is_some() || tag.contains("select"), "{tag}");
            // Its own limit is five seconds.
            assert!(begun.elapsed() < Duration::from_secs(60), "{tag}: {:?}", begun.elapsed());
        }
    }

    #[test]
    fn ends_where_it_has_too_many_nodes() {
        let bounds = Bounds { nodes: 1000, ..Bounds::default() };
        let (document, cut) = parse(&"<p>x".repeat(5000), &Url::parse("http://a/").unwrap(), bounds);
        assert_eq!(cut, Some(Cut::Nodes));
        assert!(document.tree.len() < 1000 + 2 * PIECE);
    }

    /// Formatting elements that were never closed are made anew in every paragraph: a page of n bytes makes n squared.
    #[test]
    fn ends_where_little_makes_much() {
        let open: String = (0..20_000).map(|n| format!("<p><b x={n}></p>")).collect();
        let (document, cut) = tree(&(open + &"<p>x".repeat(100_000)));
        assert!(cut.is_some());
        assert!(document.tree.len() < Bounds::default().nodes + 500_000, "{}", document.tree.len());
    }

    #[test]
    fn ends_when_the_time_is_up() {
        // Each attribute is compared with all before it.
        let attributes: String = (0..300_000).map(|n| format!(" a{n}")).collect();
        let bounds = Bounds { until: Instant::now() + Duration::from_millis(300), ..Bounds::default() };
        let begun = Instant::now();
        let (_, cut) = parse(&format!("<p{attributes}>x"), &Url::parse("http://a/").unwrap(), bounds);
        assert_eq!(cut, Some(Cut::Time));
        // Without end it takes many minutes.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn links_are_absolute_and_lead_somewhere() {
        let (document, cut) = tree(
            "<a href=d>1</a><a href='/e'>2</a><a href='javascript:x()'>3</a><a href='data:,x'>4</a>\
             <img src='data:image/png;base64,AAAA'><img src=f.png><a href='mailto:a@b.example'>5</a><a href='http://['>6</a>",
        );
        let links: Vec<String> = document
            .select("a, img")
            .iter()
            .map(|node| node.attr("href").or(node.attr("src")).unwrap_or_default().to_string())
            .collect();
        let expected = [
            "https://a.example/b/d",
            "https://a.example/e",
            "",
            "",
            "",
            "https://a.example/b/f.png",
            "mailto:a@b.example",
            "",
        ];
        assert_eq!(links, expected);
        assert_eq!(cut, None);
    }

    #[test]
    fn only_the_first_base_counts_and_links_do_not_grow_without_end() {
        let (document, _) =
            tree("<base href='//c.example/d/'><base href='http://e.example/'><a href=f>1</a>");
        assert_eq!(document.select("a").attr("href").unwrap().to_string(), "https://c.example/d/f");
        let (document, _) =
            tree(&format!("<base href='/{}/'>{}", "x".repeat(100_000), "<a href=f>1</a>".repeat(1000)));
        let total: usize =
            document.select("a").iter().map(|a| a.attr("href").map_or(0, |href| href.len())).sum();
        assert!(total < LINKS + 100_000, "{total}");
    }

    #[test]
    fn lists_and_quotes_indent_only_so_far() {
        let (document, cut) = tree(&format!("{}x", "<blockquote>".repeat(100)));
        assert_eq!(document.select("blockquote").length(), INDENTS);
        assert_eq!(cut, None);
    }
}
