//! The syntax tree of a template, and its text form.

use std::fmt;

/// A node of the syntax tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Text outside of braces.
    Text(String),
    /// An expression in braces.
    Action(Pipe),
    /// `if … else … end`.
    If { condition: Pipe, then: Vec<Node>, otherwise: Option<Vec<Node>> },
    /// `range … else … end`.
    Range { over: Pipe, body: Vec<Node>, otherwise: Option<Vec<Node>> },
}

/// A pipeline of commands: the value of each command is the last argument of the next command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pipe {
    /// The variables that get the value, with their `$`.
    pub(super) variables: Vec<String>,
    /// Whether the variables exist already (`=` instead of `:=`).
    pub(super) assigns: bool,
    /// The commands; there is at least one.
    pub(super) commands: Vec<Command>,
}

/// An operand, or a function and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// The words; there is at least one.
    pub(super) words: Vec<Word>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// `.`
    Dot,
    /// `.Group.a`
    Field(Vec<String>),
    /// `$x.a`
    Variable(String, Vec<String>),
    /// `(…).a`
    Pipe(Pipe, Vec<String>),
    Function(Function),
    /// A string, and its source text.
    Str(String, String),
    /// A number, and its source text.
    Int(i64, String),
    Bool(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    And,
    Eq,
    Ge,
    Gt,
    Index,
    Le,
    Len,
    Lt,
    Ne,
    Not,
    Or,
    ParseInt,
    Printf,
    /// `.Meta`, a method of the data of templates.
    Meta,
    /// `$.Meta`.
    MetaOfRoot,
}

impl Function {
    /// The functions that are called by their names.
    pub(super) const ALL: [Self; 13] = [
        Self::And,
        Self::Eq,
        Self::Ge,
        Self::Gt,
        Self::Index,
        Self::Le,
        Self::Len,
        Self::Lt,
        Self::Ne,
        Self::Not,
        Self::Or,
        Self::ParseInt,
        Self::Printf,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::And => "and",
            Self::Eq => "eq",
            Self::Ge => "ge",
            Self::Gt => "gt",
            Self::Index => "index",
            Self::Le => "le",
            Self::Len => "len",
            Self::Lt => "lt",
            Self::Ne => "ne",
            Self::Not => "not",
            Self::Or => "or",
            Self::ParseInt => "parseInt",
            Self::Printf => "printf",
            Self::Meta => ".Meta",
            Self::MetaOfRoot => "$.Meta",
        }
    }

    /// Returns the minimum and maximum number of arguments.
    pub(super) fn arity(self) -> (usize, usize) {
        match self {
            Self::And | Self::Or | Self::Index | Self::Printf => (1, usize::MAX),
            Self::Eq => (2, usize::MAX),
            Self::Ge | Self::Gt | Self::Le | Self::Lt | Self::Ne => (2, 2),
            Self::Len | Self::Not | Self::Meta | Self::MetaOfRoot => (1, 1),
            Self::ParseInt => (3, 3),
        }
    }
}

// === Go's text form ===

pub(super) fn write_list(f: &mut fmt::Formatter<'_>, nodes: &[Node]) -> fmt::Result {
    nodes.iter().try_for_each(|node| write!(f, "{node}"))
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, pipe, list, otherwise) = match self {
            Self::Text(text) => return f.write_str(text),
            Self::Action(pipe) => return write!(f, "{{{{{pipe}}}}}"),
            Self::If { condition, then, otherwise } => ("if", condition, then, otherwise),
            Self::Range { over, body, otherwise } => ("range", over, body, otherwise),
        };
        write!(f, "{{{{{name} {pipe}}}}}")?;
        write_list(f, list)?;
        if let Some(otherwise) = otherwise {
            f.write_str("{{else}}")?;
            write_list(f, otherwise)?;
        }
        f.write_str("{{end}}")
    }
}

impl fmt::Display for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.variables.is_empty() {
            let sign = if self.assigns { "=" } else { ":=" };
            write!(f, "{} {sign} ", self.variables.join(", "))?;
        }
        for (number, command) in self.commands.iter().enumerate() {
            if number > 0 {
                f.write_str(" | ")?;
            }
            command.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, word) in self.words.iter().enumerate() {
            if number > 0 {
                f.write_str(" ")?;
            }
            word.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = match self {
            Self::Dot => return f.write_str("."),
            Self::Function(function) => return f.write_str(function.name()),
            Self::Str(_, written) | Self::Int(_, written) => return f.write_str(written),
            Self::Bool(is_true) => return is_true.fmt(f),
            Self::Field(fields) => fields,
            Self::Variable(name, fields) => {
                f.write_str(name)?;
                fields
            }
            Self::Pipe(pipe, fields) => {
                write!(f, "({pipe})")?;
                fields
            }
        };
        fields.iter().try_for_each(|field| write!(f, ".{field}"))
    }
}
