// Package repo reads git repositories without a checkout, without the git binary and without a child process.
//
// A Remote resolves a Ref to a commit by one ref advertisement. A Store fetches that commit and keeps it: a bare store of
// packs with version 2 indexes, which git itself can read. The store is a cache. It is received as a stream in bounded
// memory, it is made anew when it is damaged or has grown, and nothing that was published depends on it.
//
// The bytes of a repository are foreign data: they are read, never executed, and every size that they claim is held
// against Limits before memory or disk is spent on it.
package repo
