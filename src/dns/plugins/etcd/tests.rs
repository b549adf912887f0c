mod answers;
mod fake_etcd;
mod following;
mod hostile;
