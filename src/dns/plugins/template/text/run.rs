//! Runs a template for a query.

use super::format::MAX_LENGTH;
use super::functions::call;
use super::node::{Command, Function, Node, Pipe, Word};
use super::value::{Data, Value};

pub(super) struct Runner<'a> {
    variables: Vec<(String, Value<'a>)>,
    out: String,
}

impl<'a> Runner<'a> {
    pub(super) fn new(data: &'a Data) -> Self {
        Self { variables: vec![("$".to_owned(), Value::Data(data))], out: String::new() }
    }

    /// Returns the text that the template generates from the data.
    ///
    /// # Errors
    /// Fails if an expression fails.
    pub(super) fn run(mut self, nodes: &[Node]) -> Result<String, String> {
        let dot = self.variables[0].1.clone();
        self.list(nodes, &dot)?;
        Ok(self.out)
    }

    fn list(&mut self, nodes: &[Node], dot: &Value<'a>) -> Result<(), String> {
        nodes.iter().try_for_each(|node| self.node(node, dot))
    }

    fn node(&mut self, node: &Node, dot: &Value<'a>) -> Result<(), String> {
        match node {
            Node::Text(text) => self.write(text),
            Node::Action(pipe) => {
                let value = self.pipe(pipe, dot)?;
                if !pipe.variables.is_empty() {
                    return self.set(pipe, &[value]);
                }
                let text = value.print().map_err(|message| at(pipe, &message))?;
                self.write(&text)
            }
            Node::If { condition, then, otherwise } => {
                let outer = self.variables.len();
                let value = self.pipe(condition, dot)?;
                self.set(condition, std::slice::from_ref(&value))?;
                let list = if value.is_true() { Some(then) } else { otherwise.as_ref() };
                let done = list.map_or(Ok(()), |list| self.list(list, dot));
                self.variables.truncate(outer);
                done
            }
            Node::Range { over, body, otherwise } => {
                let outer = self.variables.len();
                let elements = elements(&self.pipe(over, dot)?).map_err(|message| at(over, &message))?;
                let is_empty = elements.is_empty();
                for (index, element) in elements {
                    if over.variables.len() == 1 {
                        self.set(over, std::slice::from_ref(&element))?;
                    } else {
                        self.set(over, &[index, element.clone()])?;
                    }
                    self.list(body, &element)?;
                    self.variables.truncate(outer);
                }
                match otherwise {
                    Some(otherwise) if is_empty => {
                        self.list(otherwise, dot)?;
                        self.variables.truncate(outer);
                        Ok(())
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        if self.out.len() + text.len() > MAX_LENGTH {
            return Err("the result is longer than any record".to_owned());
        }
        self.out.push_str(text);
        Ok(())
    }

    fn set(&mut self, pipe: &Pipe, values: &[Value<'a>]) -> Result<(), String> {
        for (name, value) in pipe.variables.iter().zip(values) {
            if !pipe.assigns {
                self.variables.push((name.clone(), value.clone()));
                continue;
            }
            let known = self.variables.iter_mut().rev().find(|(known, _)| known == name);
            known.ok_or_else(|| format!("there is no variable {name}"))?.1 = value.clone();
        }
        Ok(())
    }

    fn pipe(&mut self, pipe: &Pipe, dot: &Value<'a>) -> Result<Value<'a>, String> {
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(command, value, dot)?);
        }
        Ok(value.unwrap_or(Value::None))
    }

    fn command(
        &mut self,
        command: &Command,
        piped: Option<Value<'a>>,
        dot: &Value<'a>,
    ) -> Result<Value<'a>, String> {
        let Some((Word::Function(function), arguments)) = command.words.split_first() else {
            return command.words.first().map_or(Ok(Value::None), |word| self.word(word, dot));
        };
        if let Function::And | Function::Or = function {
            let mut last = piped.clone();
            for argument in arguments {
                let value = self.word(argument, dot)?;
                if value.is_true() == (*function == Function::Or) {
                    return Ok(value);
                }
                last = Some(piped.clone().unwrap_or(value));
            }
            return Ok(last.unwrap_or(Value::None));
        }
        let mut values = Vec::with_capacity(arguments.len() + 1);
        for argument in arguments {
            values.push(self.word(argument, dot)?);
        }
        values.extend(piped);
        if let Function::Meta | Function::MetaOfRoot = function {
            return self.label(&values).map_err(|message| at(command, &message));
        }
        call(*function, &values)
            .map_err(|message| at(command, &format!("error calling {}: {message}", function.name())))
    }

    /// Returns the value of a label, empty if it isn't known.
    fn label(&self, arguments: &[Value<'a>]) -> Result<Value<'a>, String> {
        let (Some((_, Value::Data(data))), [Value::Str(label)]) = (self.variables.first(), arguments) else {
            return Err("a label is a string".to_owned());
        };
        let known = data.labels.as_ref().and_then(|labels| labels.value(label));
        Ok(Value::Str(known.unwrap_or_default().into()))
    }

    fn word(&mut self, word: &Word, dot: &Value<'a>) -> Result<Value<'a>, String> {
        let (value, fields): (Value<'a>, &[String]) = match word {
            Word::Dot => return Ok(dot.clone()),
            // The parser rejects a function as an operand, unless the function is in parentheses.
            Word::Function(function) => return Err(format!("{} needs arguments", function.name())),
            Word::Str(text, _) => return Ok(Value::Str(text.clone().into())),
            Word::Int(number, _) => return Ok(Value::Int(*number)),
            Word::Bool(is_true) => return Ok(Value::Bool(*is_true)),
            Word::Field(fields) => (dot.clone(), fields),
            Word::Variable(name, fields) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                (known.map_or(Value::None, |(_, value)| value.clone()), fields)
            }
            Word::Pipe(pipe, fields) => (self.pipe(pipe, dot)?, fields),
        };
        fields.iter().try_fold(value, |value, field| value.field(field)).map_err(|message| at(word, &message))
    }
}

/// Returns the elements for `range` as pairs of index or key, and value.
fn elements<'a>(value: &Value<'a>) -> Result<Vec<(Value<'a>, Value<'a>)>, String> {
    let number = |at: usize| Value::Int(i64::try_from(at).unwrap_or(i64::MAX));
    Ok(match value {
        Value::None => Vec::new(),
        Value::Strings(list) => {
            list.iter().enumerate().map(|(at, text)| (number(at), Value::Str(text.into()))).collect()
        }
        Value::Questions(list) => {
            list.iter().enumerate().map(|(at, question)| (number(at), Value::Question(question))).collect()
        }
        Value::Map(map) => {
            map.iter().map(|(key, text)| (Value::Str(key.into()), Value::Str(text.into()))).collect()
        }
        other => return Err(format!("range can't go over {}", other.kind_name())),
    })
}

fn at(what: impl std::fmt::Display, message: &str) -> String {
    format!("at <{what}>: {message}")
}
