//! Defines the options of `omniverb top`.

use clap::{Args, ValueEnum};

/// How rates are shown.
#[derive(Clone, Debug, Args)]
pub struct TopOptions {
    /// Seconds between two tables, 0.1 to 86400.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0)]
    pub delay: f64,
    /// End after so many tables [default: never].
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub iterations: Option<u64>,
    /// Print tables one below the other, also on a terminal.
    #[arg(short, long)]
    pub batch: bool,
    /// Print one table: the same as -b -n 1.
    #[arg(long, conflicts_with = "iterations")]
    pub once: bool,
    /// Print a line of JSON instead of each table.
    #[arg(long)]
    pub json: bool,
    /// By what devices are sorted, the greatest first.
    #[arg(short = 'o', long, value_name = "COLUMN", value_enum, default_value_t = TopOrder::Rate)]
    pub sort: TopOrder,
}

/// By what devices are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopOrder {
    /// Bits sent and received.
    Rate,
    /// The part of the limit that is used.
    Limit,
    /// Packets that the daemon dropped in a second.
    Drops,
    /// Names of vNICs, by the alphabet.
    Name,
}
