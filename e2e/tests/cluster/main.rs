//! Tests of the mesh on a real Kubernetes, as `make e2e` starts it: the charts, injection, traffic, policy, certificates, faults. Named
//! by case where there is one. Without a cluster they are ignored.

mod certificates;
mod discovery;
mod faults;
mod inject;
mod install;
mod policy;
mod routes;
mod traffic;
