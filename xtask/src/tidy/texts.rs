//! Texts in Rust that people may see, and the list of all of them, by which a review sees each change of one.
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::SourceFile;

/// Crates and modules whose texts only developers see.
const INTERNAL: &[&str] =
    &["crates/testkit/", "crates/simulator/", "crates/memory/", "crates/net/src/streams/fuzzing"];
/// Words with which texts for SQLite begin.
const SQL: &[&str] =
    &["SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "PRAGMA", "WITH", "BEGIN"];

/// Every text of the program, by file: what has a space between letters is taken for one.
pub fn list(files: &[SourceFile]) -> String {
    let mut page = String::from(
        "Every text in the source of dmover, so that a review sees each change of one.\n\
         Made by 'cargo xtask docs'; do not edit.\n",
    );
    for file in files {
        let is_ours = file.path.starts_with("crates/") && file.path.contains("/src/");
        if !is_ours || file.is_test() || INTERNAL.iter().any(|path| file.path.starts_with(path)) {
            continue;
        }
        let texts: Vec<Seen> =
            literals(file).into_iter().filter(|seen| is_prose(&seen.text)).collect();
        if !texts.is_empty() {
            page.extend(["\n== ", &file.path, "\n"]);
        }
        for Seen { text, .. } in texts {
            page.push_str(&text.trim().escape_debug().to_string().replace("\\'", "'"));
            page.push('\n');
        }
    }
    page
}

fn is_prose(text: &str) -> bool {
    let text = text.trim();
    let first = text.split_whitespace().next().unwrap_or_default();
    let words = text.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic));
    words.count() > 1 && !SQL.contains(&first)
}

/// A text that people may see.
#[derive(Debug)]
pub struct Seen {
    pub line: usize,
    pub text: String,
    /// A phrase begins before this byte; what follows belongs to the next line.
    pub end: usize,
}

/// The string literals outside tests, and doc comments in macro calls, which become texts there.
pub fn literals(file: &SourceFile) -> Vec<Seen> {
    let mut texts = Vec::new();
    // A file that does not parse is a finding of its own.
    if let (Some(rust), Ok(tokens)) = (file.rust(), file.text.parse()) {
        collect(tokens, false, &mut texts);
        texts.retain(|text| !rust.in_test(text.line));
    }
    texts
}

fn collect(tokens: TokenStream, in_macro: bool, texts: &mut Vec<Seen>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Literal(literal) => {
                if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                    let (line, text) = (literal.span().start().line, text.value());
                    texts.push(Seen { line, end: text.len(), text });
                }
            }
            TokenTree::Group(group) => {
                let first = group.stream().into_iter().next();
                let is_doc = group.delimiter() == Delimiter::Bracket
                    && matches!(first, Some(TokenTree::Ident(name)) if name == "doc");
                let is_macro = matches!(at.checked_sub(1).map(|at| &trees[at]),
                    Some(TokenTree::Punct(bang)) if bang.as_char() == '!')
                    && !is_doc;
                if in_macro || !is_doc {
                    collect(group.stream(), in_macro || is_macro, texts);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_prose_and_nothing_of_tests() {
        let code = "const A: &str = \"cannot read 'x'\";\nconst B: &str = \"field_name\";\n\
                    const C: &str = \"SELECT a FROM b\";\n\
                    #[cfg(test)]\nmod tests { const D: &str = \"not this one\"; }\n";
        let list = list(&[
            SourceFile::new("crates/cli/src/a.rs", code),
            SourceFile::new("crates/testkit/src/a.rs", code),
        ]);
        let found: Vec<&str> = list.lines().skip(3).collect();
        assert_eq!(found, ["== crates/cli/src/a.rs", "cannot read 'x'"]);
    }
}
