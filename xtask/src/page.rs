//! What all pages that are made from code have.

/// The first lines of a page.
pub fn heading(title: &str) -> String {
    format!("<!-- made by 'cargo xtask docs'; do not edit -->\n# {title}\n\n")
}
