// Package repo reads git repositories without a checkout, the git binary or a child process.
//
// A Remote resolves a Ref to a commit with one ref advertisement. A Store fetches commits and keeps them on disk. The store is a
// cache: if it is damaged or has grown too much, the next fetch replaces it.
//
// Package wire talks to git servers, and package store keeps packs on disk. Callers use neither directly.
package repo
