//! Values of `--policy`, read from the policy catalogue.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use corebeat_policy::catalogue::{ENTRIES, Environment, PolicyName};

/// Parses the policies that an environment can run. The help text lists their summaries and
/// aliases.
pub fn policy_parser(environment: Environment) -> impl TypedValueParser<Value = PolicyName> {
    let entries = ENTRIES.iter().filter(move |entry| entry.runs_in(environment));
    let values = entries.map(|entry| {
        let help = format!("{} [alias: {}]", entry.summary, entry.alias);
        PossibleValue::new(entry.text).alias(entry.alias).help(help)
    });
    PossibleValuesParser::new(values).try_map(|text| text.parse::<PolicyName>())
}
