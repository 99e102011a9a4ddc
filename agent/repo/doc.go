// Package repo reads git repositories without a checkout, without the git binary and without a child process.
//
// A Remote resolves a Ref to a commit with one ref advertisement. A Store fetches that commit and keeps it. The store is a
// cache: it is fetched again when it is damaged or has grown, and nothing that was published depends on it.
//
// Package wire talks to git servers, and package store keeps packs on disk. Callers need neither: what they use of both has a name
// here.
package repo
