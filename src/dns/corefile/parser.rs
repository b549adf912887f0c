//! Parses tokens into blocks: addresses, braces, snippets and imports.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CorefileError;
use super::env::expand;
use super::tokens::{Position, Token, tokenize};

/// The maximum depth of nested braces: no plugin needs more than three.
const MAX_DEPTH: usize = 32;
/// The maximum number of imports: a file or snippet that imports itself exceeds it.
const MAX_IMPORTS: usize = 1000;
/// The maximum size of the tokens of all imported snippets in bytes: arguments may double it with each import.
const MAX_IMPORTED_BYTES: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSource {
    /// The addresses of the block as written, with scheme and port.
    pub addresses: Vec<Token>,
    pub lines: Vec<Directive>,
}

/// A directive, and the directives in the braces at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The tokens; the first token is the name of a plugin or an option.
    pub tokens: Vec<Token>,
    /// The directives in braces; `None` without braces.
    pub block: Option<Vec<Directive>>,
}

impl Directive {
    #[must_use]
    pub fn name(&self) -> &str {
        self.tokens.first().map_or("", |token| &token.text)
    }

    #[must_use]
    pub fn arguments(&self) -> &[Token] {
        self.tokens.get(1..).unwrap_or_default()
    }
}

/// Access to the environment and to imported files.
pub struct FileSources<'a> {
    pub variable: &'a (dyn Fn(&str) -> Option<String> + Sync),
    pub read: &'a (dyn Fn(&Path) -> std::io::Result<String> + Sync),
    /// Returns the files that match a pattern with `*` and `?`, in order.
    pub glob: &'a (dyn Fn(&Path) -> Vec<PathBuf> + Sync),
}

/// Parses a Corefile into blocks and directives.
///
/// # Errors
/// If the syntax is invalid, with the first invalid position.
pub fn parse(file: &Path, text: &str, sources: &FileSources<'_>) -> Result<Vec<BlockSource>, CorefileError> {
    Ok(parse_with_snippets(file, text, sources, Snippets::default())?.0)
}

/// The tokens of snippets, by their names.
pub type Snippets = HashMap<String, Vec<Token>>;

/// As [`parse`], for a file that another one imports after these snippets. Also returns all snippets.
///
/// # Errors
/// As for [`parse`].
pub fn parse_with_snippets(
    file: &Path,
    text: &str,
    sources: &FileSources<'_>,
    snippets: Snippets,
) -> Result<(Vec<BlockSource>, Snippets), CorefileError> {
    let file: Arc<Path> = file.into();
    let tokens = tokenize(&file, text).into();
    let mut parser = Parser {
        tokens,
        last: None,
        sources,
        snippets,
        imports: 0,
        imported_bytes: 0,
        depth: 0,
        attached_brace: None,
    };
    let mut blocks = Vec::new();
    while !parser.tokens.is_empty() {
        blocks.extend(parser.block()?);
    }
    Ok((blocks, parser.snippets))
}

struct Parser<'a> {
    tokens: VecDeque<Token>,
    /// The token before the first of `tokens`.
    last: Option<Token>,
    sources: &'a FileSources<'a>,
    snippets: Snippets,
    imports: usize,
    imported_bytes: usize,
    /// The number of open braces.
    depth: usize,
    /// The position of the first token such as `errors{`: a brace at the end of a word opens no block.
    attached_brace: Option<Position>,
}

impl Parser<'_> {
    /// Reads a server block or a snippet. Returns `None` for a snippet, and for imports without a block.
    fn block(&mut self) -> Result<Option<BlockSource>, CorefileError> {
        let addresses = self.addresses()?;
        let Some(first) = addresses.first() else { return Ok(None) };
        let snippet = first.text.strip_prefix('(').and_then(|name| name.strip_suffix(')'));
        if let (Some(name), 1) = (snippet, addresses.len()) {
            let name = name.to_owned();
            let place = first.position.clone();
            let body = self.snippet(&place)?;
            if self.snippets.insert(name.clone(), body).is_some() {
                return Err(place.error(format!("the snippet {name} is already defined")));
            }
            return Ok(None);
        }
        let lines = match self.next_if(|token| token.text == "{") {
            Some(open) => self.lines(Some(&open))?,
            // The braces are optional if the file has only one block.
            None => self.lines(None)?,
        };
        Ok(Some(BlockSource { addresses, lines }))
    }

    /// Reads the addresses before a block, up to a brace or the end of the line; a line that ends with a comma
    /// continues on the next line.
    fn addresses(&mut self) -> Result<Vec<Token>, CorefileError> {
        let mut addresses: Vec<Token> = Vec::new();
        let mut another: Option<Position> = None;
        loop {
            let begins_line = self.begins_line();
            if begins_line && another.is_none() && !addresses.is_empty() {
                return Ok(addresses);
            }
            let Some(mut token) = self.tokens.front().cloned() else {
                return match another {
                    Some(comma) => Err(comma.error("another address has to follow the comma")),
                    None => Ok(addresses),
                };
            };
            token.text = self.expand(&token.text);
            match &*token.text {
                "import" if begins_line => {
                    self.import()?;
                    continue;
                }
                "{" => {
                    return match another {
                        Some(comma) => Err(comma.error("another address has to follow the comma")),
                        None if addresses.is_empty() => Err(token
                            .position
                            .error("a block begins with the zones that it is for, such as .:53")),
                        None => Ok(addresses),
                    };
                }
                "}" => return Err(self.unmatched_brace(&token.position)),
                _ => {}
            }
            self.advance();
            another = token.text.strip_suffix(',').map(|_| token.position.clone());
            if another.is_some() {
                token.text.pop();
            }
            if another.is_some() && matches!(&*token.text, "" | "," | "{" | "}") {
                return Err(token.position.error("a comma has to follow the address without white space"));
            }
            if another.is_some() && token.text.ends_with(',') {
                return Err(token.position.error("one comma is enough after an address"));
            }
            // CoreDNS takes a misplaced `import` for a zone, which is almost certainly a mistake.
            if token.text == "import" {
                return Err(token
                    .position
                    .error("an import has to begin its line; a zone of that name is written import."));
            }
            if !token.text.is_empty() {
                addresses.push(token);
            }
        }
    }

    /// Reads the tokens of a snippet, up to the closing brace.
    fn snippet(&mut self, name: &Position) -> Result<Vec<Token>, CorefileError> {
        let Some(open) = self.next_if(|token| token.text == "{") else {
            return Err(name.error("a snippet needs braces around its lines"));
        };
        let mut body = Vec::new();
        let mut depth = 1;
        while let Some(token) = self.advance() {
            match &*token.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(body);
            }
            body.push(token);
        }
        Err(open.position.error("this { isn't closed"))
    }

    /// Reads directives up to the closing brace, or to the end of the file if no brace is open.
    fn lines(&mut self, open: Option<&Token>) -> Result<Vec<Directive>, CorefileError> {
        let mut lines = Vec::new();
        loop {
            let Some(first) = self.tokens.front() else {
                return match open {
                    Some(open) => Err(open.position.error("this { isn't closed")),
                    None => Ok(lines),
                };
            };
            match (&*first.text, open) {
                ("}", Some(_)) => {
                    self.advance();
                    return Ok(lines);
                }
                ("}", None) => return Err(self.unmatched_brace(&first.position)),
                ("{", _) => {
                    return Err(first
                        .position
                        .error("this { has to stand at the end of the line that it belongs to"));
                }
                ("import", _) => self.import()?,
                _ => lines.push(self.line()?),
            }
        }
    }

    fn line(&mut self) -> Result<Directive, CorefileError> {
        let mut line = Directive { tokens: Vec::new(), block: None };
        while !self.begins_line() || line.tokens.is_empty() {
            let Some(mut token) = self.advance() else { break };
            match &*token.text {
                "{" => {
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        return Err(token
                            .position
                            .error(format!("braces are nested more than {MAX_DEPTH} deep")));
                    }
                    line.block = Some(self.lines(Some(&token))?);
                    self.depth -= 1;
                    return self.ends_line().map(|()| line);
                }
                "}" => return Err(token.position.error("} has to stand at the beginning of a line")),
                _ => {
                    token.text = self.expand(&token.text);
                    line.tokens.push(token);
                }
            }
        }
        Ok(line)
    }

    /// Checks that nothing follows a closing brace on its line. CoreDNS would parse the following token as another
    /// directive of the same plugin.
    fn ends_line(&self) -> Result<(), CorefileError> {
        match self.tokens.front() {
            Some(next) if !self.begins_line() => Err(next.position.error(format!(
                "{:?} has to stand on a line of its own, after the closing brace",
                next.text
            ))),
            _ => Ok(()),
        }
    }

    fn unmatched_brace(&self, place: &Position) -> CorefileError {
        let hint = self.attached_brace.as_ref().map_or(String::new(), |at| {
            format!("; a {{ before it needs white space around it: see line {}", at.line)
        });
        place.error(format!("this }} closes nothing{hint}"))
    }

    /// Replaces an `import` by the imported tokens.
    fn import(&mut self) -> Result<(), CorefileError> {
        let Some(import) = self.advance() else { return Ok(()) };
        let mut arguments = Vec::new();
        while !self.tokens.is_empty() && !self.begins_line() {
            arguments.extend(self.advance().map(|mut token| {
                token.text = self.expand(&token.text);
                token
            }));
        }
        let Some((what, arguments)) = arguments.split_first().filter(|(what, _)| !what.text.is_empty())
        else {
            return Err(import
                .position
                .error("import needs the name of a snippet, a file, or a pattern of files"));
        };
        self.imports += 1;
        if self.imports > MAX_IMPORTS {
            return Err(what
                .position
                .error(format!("more than {MAX_IMPORTS} imports: does {} import itself?", what.text)));
        }
        let imported = match self.snippets.get(&what.text) {
            Some(body) => {
                let mut imported = Vec::with_capacity(body.len());
                for token in body {
                    let token = with_arguments(token, arguments).map_err(|missing| {
                        what.position
                            .error(format!("the snippet {} needs an argument for {missing}", what.text))
                    })?;
                    self.imported_bytes += size_of::<Token>() + token.text.len();
                    if self.imported_bytes > MAX_IMPORTED_BYTES {
                        return Err(what.position.error(format!(
                            "the imported snippets take more than {} MiB",
                            MAX_IMPORTED_BYTES >> 20
                        )));
                    }
                    imported.push(token);
                }
                imported
            }
            None => self.files(what, arguments)?,
        };
        for token in imported.into_iter().rev() {
            self.tokens.push_front(token);
        }
        // The first imported token begins a line.
        self.last = None;
        Ok(())
    }

    fn files(&self, what: &Token, arguments: &[Token]) -> Result<Vec<Token>, CorefileError> {
        if let Some(argument) = arguments.first() {
            return Err(argument
                .position
                .error("only a snippet takes arguments, and there is none of that name"));
        }
        // The path is relative to the importing file.
        let path = what.position.file.parent().unwrap_or(Path::new("")).join(&what.text);
        let pattern = path.to_string_lossy();
        let [stars, marks] = ['*', '?'].map(|wildcard| pattern.matches(wildcard).count());
        if stars > 1 || marks > 1 || pattern.contains('[') {
            return Err(what
                .position
                .error("a pattern of files may have one * and one ?, and no other wildcard"));
        }
        let paths = if stars + marks > 0 { (self.sources.glob)(&path) } else { vec![path] };
        let mut imported = Vec::new();
        for path in paths {
            let text = (self.sources.read)(&path).map_err(|error| {
                what.position.error(format!(
                    "neither a snippet nor a file that can be read: {}: {error}",
                    path.display()
                ))
            })?;
            imported.extend(tokenize(&path.into(), &text));
        }
        Ok(imported)
    }

    fn expand(&self, text: &str) -> String {
        expand(text, self.sources.variable)
    }

    /// Returns whether the next token begins a line; also true at the end of the file.
    fn begins_line(&self) -> bool {
        match (&self.last, self.tokens.front()) {
            (Some(last), Some(next)) => next.begins_new_line_after(last),
            _ => true,
        }
    }

    fn advance(&mut self) -> Option<Token> {
        let token = self.tokens.pop_front()?;
        if token.text.len() > 1 && token.text.ends_with('{') && self.attached_brace.is_none() {
            self.attached_brace = Some(token.position.clone());
        }
        self.last = Some(token.clone());
        Some(token)
    }

    fn next_if(&mut self, is: impl Fn(&Token) -> bool) -> Option<Token> {
        if self.tokens.front().is_some_and(is) { self.advance() } else { None }
    }
}

/// Returns a token of a snippet with `{args.0}` and so on replaced by the arguments of the import. Text beyond
/// [`MAX_IMPORTED_BYTES`] is left out. Fails for an argument that isn't given.
fn with_arguments(token: &Token, arguments: &[Token]) -> Result<Token, String> {
    let mut text = String::new();
    let mut rest = &*token.text;
    while let Some((before, after)) = rest.split_once("{args.")
        && text.len() <= MAX_IMPORTED_BYTES
    {
        text.push_str(before);
        let reference = after.split_once('}');
        let Some((number, behind)) =
            reference.and_then(|(number, behind)| Some((number.parse::<usize>().ok()?, behind)))
        else {
            text.push_str("{args.");
            rest = after;
            continue;
        };
        let argument = arguments.get(number).ok_or_else(|| format!("{{args.{number}}}"))?;
        text.push_str(&argument.text);
        rest = behind;
    }
    text.push_str(rest);
    Ok(Token { text, ..token.clone() })
}

#[cfg(test)]
mod tests;
