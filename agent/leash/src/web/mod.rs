//! `web_fetch`: one page of the web, as text, from a host that was granted.
