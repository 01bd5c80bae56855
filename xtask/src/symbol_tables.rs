//! Reads a library's `symbols.toml`: which symbol is in which node, and what it does.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::built_libraries::Library;

/// The whole table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    /// Public nodes by name; see [`Table::nodes_in_order`].
    pub nodes: BTreeMap<String, BTreeMap<String, Symbol>>,
    /// Verbs that are inline functions over struct members.
    #[serde(default)]
    pub inline: BTreeMap<String, InlineVerb>,
    #[serde(default)]
    pub private: PrivateNodes,
    pub own: Option<OwnNode>,
    /// What the library calls of another's own node.
    pub needs: Option<OwnNode>,
    /// What README.md calls a feature, in its list of what there is and what not: verbs of it.
    #[serde(default)]
    pub words: BTreeMap<String, Vec<String>>,
}

/// How far a verb is.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VerbStatus {
    Works,
    Partly,
    Unsupported,
}

/// How the caller of an unsupported verb learns of it. The names end the names of the functions
/// in `src/unsupported_verbs.rs` of the crate.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnsupportedReturn {
    Errno,
    NegativeErrno,
    Null,
    MinusOne,
    Zero,
    Nothing,
}

impl UnsupportedReturn {
    /// The function to jump to.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Errno => "ov_unsupported_errno",
            Self::NegativeErrno => "ov_unsupported_negative_errno",
            Self::Null => "ov_unsupported_null",
            Self::MinusOne => "ov_unsupported_minus_one",
            Self::Zero => "ov_unsupported_zero",
            Self::Nothing => "ov_unsupported_nothing",
        }
    }

    /// How docs/verbs-matrix.md says it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Errno => "`EOPNOTSUPP`",
            Self::NegativeErrno => "`-EOPNOTSUPP`",
            Self::Null => "`NULL`, errno `EOPNOTSUPP`",
            Self::MinusOne => "-1, errno `EOPNOTSUPP`",
            Self::Zero => "0, errno `EOPNOTSUPP`",
            Self::Nothing => "does nothing",
        }
    }
}

/// One line of a public node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Symbol {
    pub status: VerbStatus,
    pub returns: Option<UnsupportedReturn>,
    #[serde(default)]
    pub note: String,
}

/// One line of the inline section.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InlineVerb {
    pub status: VerbStatus,
    pub slot: String,
    #[serde(default)]
    pub note: String,
}

/// The node for our own other libraries. Its names are no default versions, so nobody is bound to
/// one without asking for this node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnNode {
    pub node: String,
    pub functions: Vec<String>,
}

/// The private nodes: all names in all of them.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrivateNodes {
    pub nodes: Vec<u32>,
    pub works: Vec<String>,
    pub numbered_nothing: Vec<String>,
    pub data: Vec<String>,
    pub first_argument: Vec<String>,
    pub minus_one: Vec<String>,
    pub null: Vec<String>,
    pub nothing: Vec<String>,
    pub errno: Vec<String>,
}

impl PrivateNodes {
    /// Name and function of every private function that is not numbered.
    pub(crate) fn functions(&self) -> Vec<(&str, String)> {
        let mut all = Vec::new();
        let groups = [
            (&self.first_argument, "ov_unsupported_first_argument"),
            (&self.minus_one, UnsupportedReturn::MinusOne.function()),
            (&self.null, UnsupportedReturn::Null.function()),
            (&self.nothing, UnsupportedReturn::Nothing.function()),
            (&self.errno, UnsupportedReturn::Errno.function()),
        ];
        all.extend(self.works.iter().map(|name| (name.as_str(), format!("ov_{name}"))));
        for (names, function) in groups {
            all.extend(names.iter().map(|name| (name.as_str(), function.to_owned())));
        }
        all
    }
}

impl Table {
    /// Reads and checks the table.
    pub(crate) fn read(library: &Library) -> Result<Self> {
        let path = library.table();
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let table: Self = toml::from_str(&text).with_context(|| path.display().to_string())?;
        table.check().with_context(|| path.display().to_string())?;
        Ok(table)
    }

    fn check(&self) -> Result<()> {
        let mut seen = BTreeMap::new();
        for (node, symbols) in &self.nodes {
            for (name, symbol) in symbols {
                if let Some(other) = seen.insert(name, node) {
                    bail!("{name} is in {other} and in {node}");
                }
                match (symbol.status, symbol.returns) {
                    (VerbStatus::Unsupported, None) => bail!("{name}: `returns` is missing"),
                    (VerbStatus::Works | VerbStatus::Partly, Some(_)) => {
                        bail!("{name}: `returns` is for unsupported symbols")
                    }
                    (VerbStatus::Partly, None) if symbol.note.is_empty() => {
                        bail!("{name}: a `note` must say what is missing")
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// How far a verb is, be it a symbol or inline.
    pub(crate) fn status(&self, verb: &str) -> Option<VerbStatus> {
        let symbols = self.nodes.values().find_map(|node| node.get(verb));
        symbols.map(|one| one.status).or_else(|| Some(self.inline.get(verb)?.status))
    }

    /// Public nodes, oldest first; the order in which each depends on the one before.
    pub(crate) fn nodes_in_order(&self) -> Vec<(&str, &BTreeMap<String, Symbol>)> {
        let mut nodes: Vec<_> =
            self.nodes.iter().map(|(name, symbols)| (name.as_str(), symbols)).collect();
        nodes.sort_by_key(|(name, _)| {
            let number = name.rsplit(['.', '_']).next().and_then(|n| n.parse::<u32>().ok());
            (!name.starts_with("IBVERBS"), number)
        });
        nodes
    }

    /// Every `ov_` function that the entry points jump to, except the answers of unsupported ones.
    pub(crate) fn wanted_functions(&self) -> Vec<String> {
        let public = self.nodes.values().flatten();
        let public = public.filter(|(_, symbol)| symbol.status != VerbStatus::Unsupported);
        let own = self.own.iter().flat_map(|own| &own.functions);
        let names = public.map(|(name, _)| name).chain(&self.private.works).chain(own);
        names.map(|name| format!("ov_{name}")).collect()
    }
}
