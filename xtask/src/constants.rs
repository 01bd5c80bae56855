//! The constants of the code, and what numbers they are: for documents that say the same numbers.
//!
//! In: Rust files. Out: values of integer constants and durations (in nanoseconds), by name; and of
//! the fields of `Limits`, whose default is in a `limits.rs`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use syn::visit::{self, Visit};

/// What a constant is made of, and where.
struct Definition {
    path: String,
    value: syn::Expr,
}

/// All constants, by name.
#[derive(Default)]
pub(crate) struct Constants(BTreeMap<String, Vec<Definition>>);

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
        Reader { path, constants: self }.visit_file(&tree);
        Ok(())
    }

    /// The value of `NAME`, or of `file.rs NAME` where files have several of that name.
    pub(crate) fn value(&self, what: &str) -> Result<Value> {
        let (file, name) = what.rsplit_once(' ').unwrap_or(("", what));
        let all = self.0.get(name).with_context(|| format!("there is no constant {name}"))?;
        let in_file = |one: &&Definition| {
            let before = one.path.strip_suffix(file);
            before.is_some_and(|rest| file.is_empty() || rest.is_empty() || rest.ends_with('/'))
        };
        let mut found = all.iter().filter(in_file);
        let one = found.next().with_context(|| format!("{file} has no constant {name}"))?;
        if let Some(other) = found.next() {
            bail!("{name} is in {} and in {}", one.path, other.path);
        }
        self.evaluate(&one.value, &one.path).with_context(|| what.to_owned())
    }

    fn evaluate(&self, value: &syn::Expr, path: &str) -> Result<Value> {
        let number = |value: &syn::Expr| match self.evaluate(value, path)? {
            Value::Number(number) => Ok(number),
            Value::Duration(_) => bail!("a duration instead of a number"),
        };
        Ok(Value::Number(match value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(literal), .. }) => {
                literal.base10_parse()?
            }
            syn::Expr::Paren(inner) => number(&inner.expr)?,
            syn::Expr::Cast(inner) => number(&inner.expr)?,
            syn::Expr::Binary(two) => {
                let (left, right) = (number(&two.left)?, number(&two.right)?);
                let result = match two.op {
                    syn::BinOp::Add(_) => left.checked_add(right),
                    syn::BinOp::Sub(_) => left.checked_sub(right),
                    syn::BinOp::Mul(_) => left.checked_mul(right),
                    syn::BinOp::Div(_) => left.checked_div(right),
                    syn::BinOp::Shl(_) => left.checked_shl(u32::try_from(right)?),
                    _ => None,
                };
                result.context("an operation that is not known here")?
            }
            // Another constant: of the same file, or the only one of that name.
            syn::Expr::Path(name) => {
                let name = name.path.segments.last().context("no name")?.ident.to_string();
                return self.value(&format!("{path} {name}")).or_else(|_| self.value(&name));
            }
            syn::Expr::Call(call) => {
                let syn::Expr::Path(function) = &*call.func else { bail!("a call") };
                let name = function.path.segments.last().context("no name")?.ident.to_string();
                let scale = match name.as_str() {
                    "from_secs" => 1_000_000_000,
                    "from_millis" => 1_000_000,
                    "from_micros" => 1_000,
                    "from_nanos" => 1,
                    _ => bail!("{name} is not known here"),
                };
                let first = call.args.first().context("no argument")?;
                return Ok(Value::Duration(number(first)? * scale));
            }
            _ => bail!("what it is made of is not known here"),
        }))
    }
}

struct Reader<'a> {
    path: &'a str,
    constants: &'a mut Constants,
}

impl Reader<'_> {
    fn found(&mut self, name: String, value: &syn::Expr) {
        let one = Definition { path: self.path.to_owned(), value: value.clone() };
        self.constants.0.entry(name).or_default().push(one);
    }
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.found(item.ident.to_string(), &item.expr);
    }

    fn visit_impl_item_const(&mut self, item: &'a syn::ImplItemConst) {
        self.found(item.ident.to_string(), &item.expr);
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
}
