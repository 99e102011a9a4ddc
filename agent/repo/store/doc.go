// Package store keeps git objects on disk in a bare repository of packs with version 2 indexes, which git itself can read.
//
// A Store reads objects. A Transfer adds them. It writes the stream of a pack, or the objects of another directory, into a new
// pack beside the others, in one pass and in bounded memory. It publishes the pack when the pack is complete.
//
// The bytes of a repository are not trusted. The package checks every size that they claim against Limits before it spends memory
// or disk on them. A Store is a cache: if it is damaged, its owner fetches everything again.
package store
