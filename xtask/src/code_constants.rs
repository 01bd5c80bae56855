//! Reads the constants of the code and their numbers, for documents that repeat them.
//!
//! In: Rust files. Out: values of integer constants and durations (in nanoseconds), by name; and of
//! the fields of `Limits`, whose default is in a `limits.rs`. And which of them are budgets: their
//! documentation begins with `Budget:`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use syn::visit::{self, Visit};

/// What a constant is made of, and where.
struct Definition {
    path: String,
    value: syn::Expr,
}

/// All constants, by name.
#[derive(Default)]
pub(crate) struct Constants {
    definitions: BTreeMap<String, Vec<Definition>>,
    /// Files and names of those that are budgets.
    budgets: BTreeSet<(String, String)>,
}

/// What a constant says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(i128),
    /// In nanoseconds.
    Duration(i128),
}

impl Constants {
    /// Takes in a file.
    pub(crate) fn add(&mut self, path: &str, text: &str) -> Result<()> {
        let tree = syn::parse_file(text).with_context(|| path.to_owned())?;
        ConstantReader { path, constants: self }.visit_file(&tree);
        Ok(())
    }

    /// The file and the name of each constant that is a budget.
    pub(crate) fn budgets(&self) -> impl Iterator<Item = (&str, &str)> {
        self.budgets.iter().map(|(path, name)| (path.as_str(), name.as_str()))
    }

    /// The value of an expression of constants, `RINGS + 2 * RING_BYTES`; with `file.rs ` before it
    /// where several files have one of that name.
    pub(crate) fn value(&self, what: &str) -> Result<Value> {
        let (file, text) = what.split_once(".rs ").unwrap_or(("", what));
        let file = if file.is_empty() { String::new() } else { format!("{file}.rs") };
        let expression = syn::parse_str(text).with_context(|| what.to_owned())?;
        self.evaluate(&expression, &file).with_context(|| what.to_owned())
    }

    /// The constant of a name that a file has; or, if it has none, the only one of that name.
    fn definition(&self, name: &str, file: &str) -> Result<&Definition> {
        let all =
            self.definitions.get(name).with_context(|| format!("there is no constant {name}"))?;
        let in_file = |one: &&Definition| {
            let before = one.path.strip_suffix(file);
            before.is_some_and(|rest| file.is_empty() || rest.is_empty() || rest.ends_with('/'))
        };
        match all.iter().filter(in_file).collect::<Vec<_>>()[..] {
            [one] => Ok(one),
            [] if all.len() == 1 => Ok(&all[0]),
            [] => bail!("{file} has no {name}, and several others have"),
            [one, other, ..] => bail!("{name} is in {} and in {}", one.path, other.path),
        }
    }

    fn evaluate(&self, value: &syn::Expr, file: &str) -> Result<Value> {
        Ok(match value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(literal), .. }) => {
                Value::Number(literal.base10_parse()?)
            }
            syn::Expr::Paren(inner) => self.evaluate(&inner.expr, file)?,
            syn::Expr::Group(inner) => self.evaluate(&inner.expr, file)?,
            syn::Expr::Cast(inner) => self.evaluate(&inner.expr, file)?,
            syn::Expr::Binary(two) => {
                let left = self.evaluate(&two.left, file)?;
                combined(left, &two.op, self.evaluate(&two.right, file)?)?
            }
            syn::Expr::Path(name) => {
                let one = self.definition(&last_name(name)?, file)?;
                self.evaluate(&one.value, &one.path)?
            }
            // A field of a constant that is a struct, or a tuple.
            syn::Expr::Field(field) => {
                let syn::Expr::Path(name) = &*field.base else { bail!("a field of what?") };
                let one = self.definition(&last_name(name)?, file)?;
                self.evaluate(member(&one.value, &field.member)?, &one.path)?
            }
            syn::Expr::Call(call) => {
                let syn::Expr::Path(function) = &*call.func else { bail!("a call") };
                let scale = match last_name(function)?.as_str() {
                    "from_secs" => 1_000_000_000,
                    "from_millis" => 1_000_000,
                    "from_micros" => 1_000,
                    "from_nanos" => 1,
                    name => bail!("{name} is not known here"),
                };
                let first = call.args.first().context("no argument")?;
                let Value::Number(number) = self.evaluate(first, file)? else { bail!("twice") };
                Value::Duration(number * scale)
            }
            // `if cfg!(test) { .. } else { .. }`: what programs have.
            syn::Expr::If(choice) => {
                let otherwise = choice.else_branch.as_ref().context("no else")?;
                self.evaluate(&otherwise.1, file)?
            }
            syn::Expr::Block(block) => match block.block.stmts.last() {
                Some(syn::Stmt::Expr(last, None)) => self.evaluate(last, file)?,
                _ => bail!("a block without a value"),
            },
            _ => bail!("what it is made of is not known here"),
        })
    }
}

fn last_name(path: &syn::ExprPath) -> Result<String> {
    Ok(path.path.segments.last().context("no name")?.ident.to_string())
}

fn member<'a>(value: &'a syn::Expr, which: &syn::Member) -> Result<&'a syn::Expr> {
    match (value, which) {
        (syn::Expr::Struct(one), _) => {
            let field = one.fields.iter().find(|field| field.member == *which);
            Ok(&field.context("there is no such field")?.expr)
        }
        (syn::Expr::Array(one), syn::Member::Unnamed(at)) => {
            one.elems.iter().nth(at.index as usize).context("there are fewer")
        }
        (syn::Expr::Tuple(one), syn::Member::Unnamed(at)) => {
            one.elems.iter().nth(at.index as usize).context("there are fewer")
        }
        _ => bail!("it has no fields"),
    }
}

/// A duration times a number is one, and so is a sum of two.
fn combined(left: Value, how: &syn::BinOp, right: Value) -> Result<Value> {
    let (Value::Number(one) | Value::Duration(one)) = left;
    let (Value::Number(other) | Value::Duration(other)) = right;
    let result = match how {
        syn::BinOp::Add(_) => one.checked_add(other),
        syn::BinOp::Sub(_) => one.checked_sub(other),
        syn::BinOp::Mul(_) => one.checked_mul(other),
        syn::BinOp::Div(_) => one.checked_div(other),
        syn::BinOp::Shl(_) => one.checked_shl(u32::try_from(other)?),
        _ => None,
    };
    let result = result.context("an operation that is not known here")?;
    let are_numbers = matches!((left, right), (Value::Number(_), Value::Number(_)));
    Ok(if are_numbers { Value::Number(result) } else { Value::Duration(result) })
}

struct ConstantReader<'a> {
    path: &'a str,
    constants: &'a mut Constants,
}

impl ConstantReader<'_> {
    fn found(&mut self, name: String, value: &syn::Expr) {
        let one = Definition { path: self.path.to_owned(), value: value.clone() };
        self.constants.definitions.entry(name).or_default().push(one);
    }

    fn documented(&mut self, name: &syn::Ident, attributes: &[syn::Attribute]) {
        if first_line(attributes).is_some_and(|line| line.trim_start().starts_with("Budget:")) {
            self.constants.budgets.insert((self.path.to_owned(), name.to_string()));
        }
    }
}

/// The first line of an item's documentation.
fn first_line(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else {
            return None;
        };
        pair.path.is_ident("doc").then(|| text.value())
    })
}

impl<'a> Visit<'a> for ConstantReader<'_> {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.documented(&item.ident, &item.attrs);
        self.found(item.ident.to_string(), &item.expr);
    }

    fn visit_impl_item_const(&mut self, item: &'a syn::ImplItemConst) {
        self.documented(&item.ident, &item.attrs);
        self.found(item.ident.to_string(), &item.expr);
    }

    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        if item.ident == "Limits" && self.path.ends_with("/limits.rs") {
            for field in &item.fields {
                field.ident.iter().for_each(|name| self.documented(name, &field.attrs));
            }
        }
    }

    /// `Limits { qps_per_session: 8192, ..}`.
    fn visit_expr_struct(&mut self, item: &'a syn::ExprStruct) {
        if item.path.is_ident("Limits") && self.path.ends_with("/limits.rs") {
            for field in &item.fields {
                if let syn::Member::Named(name) = &field.member {
                    self.found(name.to_string(), &field.expr);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Constants, Value};

    fn constants() -> Constants {
        let mut constants = Constants::default();
        let files = [
            ("a/limits.rs", "const A: u32 = 4 << 20; const B: usize = crate::A * 2 + 1;"),
            ("a/limits.rs", "fn f() { Limits { per_session: 3 * TWICE } }"),
            ("a/b.rs", "const TWICE: u64 = 2; const WAIT: Duration = Duration::from_millis(5);"),
            ("a/d.rs", "const PAUSES: (u64, u64) = (1, 2); const LIMIT: L = L { burst: 7 };"),
            ("a/d.rs", "const SLOW: D = D::from_millis(if cfg!(test) { 6 } else { 500 });"),
            ("a/c.rs", "mod x { const WAIT: u64 = 7; } mod tests { const TWICE: u64 = 3; }"),
        ];
        files.iter().for_each(|(path, text)| constants.add(path, text).unwrap());
        constants
    }

    #[test]
    fn values_are_those_of_the_code() {
        let value = |what: &str| constants().value(what).ok();
        assert_eq!(value("A"), Some(Value::Number(4 << 20)));
        assert_eq!(value("B"), Some(Value::Number((8 << 20) + 1)));
        assert_eq!(value("per_session"), Some(Value::Number(6)));
        assert_eq!(value("b.rs WAIT"), Some(Value::Duration(5_000_000)));
        assert_eq!(value("a/c.rs WAIT"), Some(Value::Number(7)));
        assert_eq!(value("WAIT"), None, "two of that name");
        assert_eq!(value("C"), None);
    }

    #[test]
    fn budgets_say_that_they_are() {
        let mut constants = Constants::default();
        let text = "/// Budget: for each peer.\nconst A: u32 = 1; /// A number.\nconst B: u32 = 2;
            struct Limits { /// Budget: of a host.\n vnics: usize, /// Other.\n more: usize }";
        constants.add("a/limits.rs", text).unwrap();
        let said: Vec<_> = constants.budgets().collect();
        assert_eq!(said, [("a/limits.rs", "A"), ("a/limits.rs", "vnics")]);
    }

    #[test]
    fn what_is_reckoned_is_as_in_the_code() {
        let value = |what: &str| constants().value(what).ok();
        assert_eq!(value("(A + 2 * B) / 2"), Some(Value::Number((10 << 20) + 1)));
        assert_eq!(value("a/b.rs 3 * WAIT"), Some(Value::Duration(15_000_000)));
        assert_eq!(value("PAUSES.1 + LIMIT.burst"), Some(Value::Number(9)));
        assert_eq!(value("SLOW"), Some(Value::Duration(500_000_000)));
        assert_eq!(value("LIMIT.rate"), None);
    }
}
