//! Markup that cannot be broken by what is put into it.
//!
//! A [`Markup`] is made from constants and escaped text only, tag by tag, so that a page is well
//! formed whatever a task, an agent or a model is called or says.

use longhaul_core::text::escape;

/// A piece of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Markup(String);

impl Markup {
    /// Text of any origin.
    pub(crate) fn text(text: &str) -> Self {
        Self(entities(&escape(text)))
    }

    /// An element with attributes and what is in it.
    pub(crate) fn tag(
        name: &'static str,
        attributes: &[(&'static str, &str)],
        inner: impl IntoIterator<Item = Self>,
    ) -> Self {
        let mut out = format!("<{name}{}>", rendered(attributes));
        out.extend(inner.into_iter().map(|markup| markup.0));
        out.extend(["</", name, ">"]);
        Self(out)
    }

    /// An element that holds nothing, ever.
    pub(crate) fn void(name: &'static str, attributes: &[(&'static str, &str)]) -> Self {
        Self(format!("<{name}{}/>", rendered(attributes)))
    }

    /// Constant text of the program's own that is no markup to escape: a style sheet.
    pub(crate) fn constant(text: &'static str) -> Self {
        Self(text.to_owned())
    }

    /// An element with text in it.
    pub(crate) fn with_text(name: &'static str, attributes: &[(&'static str, &str)], text: &str) -> Self {
        Self::tag(name, attributes, [Self::text(text)])
    }

    /// The markup as text.
    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

impl FromIterator<Self> for Markup {
    fn from_iter<I: IntoIterator<Item = Self>>(pieces: I) -> Self {
        Self(pieces.into_iter().map(|piece| piece.0).collect())
    }
}

fn rendered(attributes: &[(&'static str, &str)]) -> String {
    attributes
        .iter()
        .map(|(name, value)| format!(" {name}=\"{}\"", entities(&escape(value).replace('\n', " "))))
        .collect()
}

fn entities(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // No page may hold them, escaped or not.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let name = "<script>alert('x')</script>\u{202e}\u{0}\" onload=\"y\n&amp;";
        let page = Markup::tag("p", &[("title", name)], [Markup::text(name)]).into_string();
        assert_eq!(
            page,
            "<p title=\"&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;\\u{202e}\\u{0}&quot; onload=&quot;y &amp;amp;\">\
             &lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;\\u{202e}\\u{0}&quot; onload=&quot;y\n&amp;amp;</p>"
        );
    }

    #[test]
    fn pieces_are_put_together_as_they_are() {
        let list: Markup = ["a", "b"].map(|item| Markup::with_text("li", &[], item)).into_iter().collect();
        assert_eq!(Markup::tag("ul", &[], [list]).into_string(), "<ul><li>a</li><li>b</li></ul>");
        assert_eq!(Markup::void("br", &[]).into_string(), "<br/>");
    }
}
