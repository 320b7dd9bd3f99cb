//! Placeholder.
pub mod compare;
pub mod faultfs;
pub mod image;
pub mod lanes;
pub mod powercut;
pub mod seccomp;
pub mod shapes;
pub mod skip;
pub mod swap;
pub mod tree;
