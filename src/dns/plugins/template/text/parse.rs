//! Parses the structure of a template.

use super::node::Node;
use super::value::ValueKind;

/// The maximum nesting of parentheses, `if` and `range`; far more than templates need.
const MAX_DEPTH: usize = 50;
/// The white space that Go trims.
pub(super) const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// The parser of a template. After an error, [`Parser::place`] returns the position of the error.
pub(super) struct Parser<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
    /// The start of the current operand or action.
    pub(super) begin: usize,
    /// The start of the current action's braces.
    open: usize,
    /// The variables in scope, with their types if known.
    pub(super) variables: Vec<(String, Option<ValueKind>)>,
    /// The type of the dot, if known.
    pub(super) dot: Option<ValueKind>,
    pub(super) depth: usize,
    /// Whether the template has `.Meta`.
    pub(super) uses_labels: bool,
    /// Whether the template has `.Meta`, `.Remote` or `.Message.Id`.
    pub(super) depends_on_client: bool,
}

/// The end of a list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Text,
    End,
    Else,
    ElseIf,
}

/// The end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    Braces,
    Parenthesis,
}

pub(super) type Parsed<T> = Result<T, String>;

impl<'t> Parser<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let variables = vec![("$".to_owned(), Some(ValueKind::Data))];
        let dot = Some(ValueKind::Data);
        let (uses_labels, depends_on_client) = (false, false);
        Self { text, at: 0, begin: 0, open: 0, variables, dot, depth: 0, uses_labels, depends_on_client }
    }

    /// Returns the byte offset of the current operand or action, where an error is reported.
    pub(super) fn place(&self) -> usize {
        self.begin
    }

    pub(super) fn template(&mut self) -> Parsed<Vec<Node>> {
        match self.list()? {
            (nodes, Ending::Text) => Ok(nodes),
            (_, Ending::End) => Err("there is no if or range that this end could close".to_owned()),
            _ => Err("there is no if or range that this else could belong to".to_owned()),
        }
    }

    pub(super) fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn skip_space(&mut self) -> bool {
        let rest = self.rest();
        self.at = self.text.len() - rest.trim_start_matches(SPACE).len();
        self.rest().len() < rest.len()
    }

    /// Parses nodes up to the end of a list.
    fn list(&mut self) -> Parsed<(Vec<Node>, Ending)> {
        let mut nodes = Vec::new();
        loop {
            let rest = self.rest();
            let open = rest.find("{{");
            let mut text = &rest[..open.unwrap_or(rest.len())];
            self.at += text.len();
            (self.begin, self.open) = (self.at, self.at);
            if open.is_some() {
                self.at += 2;
                if self.rest().starts_with('-') && self.rest()[1..].starts_with(SPACE) {
                    text = text.trim_end_matches(SPACE);
                    self.at += 2;
                }
            }
            if !text.is_empty() {
                nodes.push(Node::Text(text.to_owned()));
            }
            if open.is_none() {
                return Ok((nodes, Ending::Text));
            }
            if self.rest().starts_with("/*") {
                self.comment()?;
                continue;
            }
            match self.action()? {
                Ok(node) => nodes.push(node),
                Err(ending) => return Ok((nodes, ending)),
            }
        }
    }

    fn comment(&mut self) -> Parsed<()> {
        self.at += "/*".len();
        let end = self.rest().find("*/").ok_or("this comment isn't closed by */")?;
        self.at += end + "*/".len();
        let rest = self.rest();
        let trims = rest.starts_with(SPACE) && rest[1..].starts_with("-}}");
        if !(trims || rest.starts_with("}}")) || !self.close()? {
            return Err("}} has to follow the */ of a comment".to_owned());
        }
        Ok(())
    }

    /// Parses the end of an action, if it is next.
    fn close(&mut self) -> Parsed<bool> {
        let spaced = self.skip_space();
        self.close_after(spaced)
    }

    pub(super) fn close_after(&mut self, spaced: bool) -> Parsed<bool> {
        if self.rest().starts_with("}}") {
            self.at += 2;
        } else if spaced && self.rest().starts_with("-}}") {
            self.at += 3;
            self.skip_space();
        } else if self.rest().is_empty() {
            self.begin = self.open;
            return Err("this {{ isn't closed by }}: is the record in quotes?".to_owned());
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Parses an action after its opening braces, or the end of a list.
    fn action(&mut self) -> Parsed<Result<Node, Ending>> {
        self.skip_space();
        let (begin, keyword) = (self.begin, identifier(self.rest()));
        match keyword {
            "if" | "range" => {}
            "end" | "else" => {
                self.at += keyword.len();
                if self.close()? {
                    return Ok(Err(if keyword == "end" { Ending::End } else { Ending::Else }));
                }
                if keyword == "else" && identifier(self.rest()) == "if" {
                    return Ok(Err(Ending::ElseIf));
                }
                self.begin = self.at;
                return Err("only }} can follow end, and only }} or if can follow else".to_owned());
            }
            _ => {
                let mark = self.variables.len();
                let pipe = self.pipe(Close::Braces, 1)?;
                if pipe.variables.is_empty() {
                    self.variables.truncate(mark);
                    if let Some(
                        kind @ (ValueKind::Data
                        | ValueKind::Message
                        | ValueKind::Question
                        | ValueKind::Questions),
                    ) = self.kind(&pipe)
                    {
                        self.begin = begin;
                        return Err(format!("{} can't be written: take a field of it", kind.name()));
                    }
                }
                return Ok(Ok(Node::Action(pipe)));
            }
        }
        self.at += keyword.len();
        if !self.rest().is_empty()
            && !self.rest().starts_with(SPACE)
            && !self.rest().starts_with(['.', '(', '}'])
        {
            self.begin = self.at;
            return Err(format!("a space has to follow {keyword}"));
        }
        let outer = (self.variables.len(), self.dot);
        self.nest()?;
        let node = if keyword == "if" { self.condition(begin)? } else { self.range(begin)? };
        self.depth -= 1;
        self.variables.truncate(outer.0);
        self.dot = outer.1;
        Ok(Ok(node))
    }

    fn condition(&mut self, begin: usize) -> Parsed<Node> {
        let condition = self.pipe(Close::Braces, 1)?;
        let inner = self.variables.len();
        let (then, ending) = self.list()?;
        self.variables.truncate(inner);
        let otherwise = self.otherwise(ending, begin, "if")?;
        Ok(Node::If { condition, then, otherwise })
    }

    fn range(&mut self, begin: usize) -> Parsed<Node> {
        let over = self.pipe(Close::Braces, 2)?;
        let outer = self.dot;
        let elements = match self.kind(&over).map(ValueKind::elements) {
            Some(Err(message)) => {
                self.begin = begin;
                return Err(message);
            }
            Some(Ok(elements)) => Some(elements),
            None => None,
        };
        let (index, element) = (elements.map(|kinds| kinds.0), elements.map(|kinds| kinds.1));
        let kinds = if over.variables.len() == 1 { [element, None] } else { [index, element] };
        for (name, kind) in over.variables.iter().zip(kinds) {
            self.set_kind(name, kind, over.assigns);
        }
        self.dot = element;
        let inner = self.variables.len();
        let (body, ending) = self.list()?;
        self.variables.truncate(inner);
        self.dot = outer;
        let otherwise = self.otherwise(ending, begin, "range")?;
        Ok(Node::Range { over, body, otherwise })
    }

    /// Parses from `else` to `end`, unless `ending` says that `end` was already parsed.
    fn otherwise(&mut self, ending: Ending, begin: usize, name: &str) -> Parsed<Option<Vec<Node>>> {
        let (nodes, ending) = match ending {
            Ending::End => return Ok(None),
            Ending::Else => self.list()?,
            Ending::ElseIf if name == "if" => {
                self.at += "if".len();
                self.nest()?;
                let nested = self.condition(begin)?;
                self.depth -= 1;
                return Ok(Some(vec![nested]));
            }
            Ending::ElseIf => return Err("a range can't have an else if".to_owned()),
            Ending::Text => (Vec::new(), Ending::Text),
        };
        match ending {
            Ending::End => Ok(Some(nodes)),
            Ending::Text => {
                self.begin = begin;
                Err(format!("this {name} isn't closed by {{{{ end }}}}"))
            }
            _ => Err("there is an else before this one".to_owned()),
        }
    }

    pub(super) fn nest(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} nested parentheses, ifs and ranges"));
        }
        Ok(())
    }
}

/// Returns the identifier at the start of a text.
pub(super) fn identifier(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}
