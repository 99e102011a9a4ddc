// Package wire talks to git servers: git's protocol version 0, as a client of git-upload-pack and git-receive-pack, over https,
// http or ssh.
//
// A Client lists the refs of a repository, and requests a commit in the cheapest way that the server accepts. The packs of the
// server go to a store.Transfer. A Client also pushes one ref with a pack of the caller; the server changes the ref only if it
// still has the value that the caller expects.
//
// A server is not trusted. Credentials go only to the scheme, host and port of the repository's URL. Every answer is limited in
// bytes and in time. Errors show text of the server only quoted and without the secrets that were sent.
package wire
