// Package store keeps git objects on disk as a bare repository of packs with version 2 indexes, which git itself can read.
//
// A Store reads objects. A Transfer adds them: it turns the stream of a pack, or the objects of another directory, into a new
// pack beside the others, in one pass and in bounded memory, and publishes the pack when it is complete.
//
// The bytes of a repository are foreign data: they are read, never executed, and every size that they claim is checked
// against Limits before memory or disk is spent on it. A Store is a cache: if it is damaged, its owner fetches it again.
package store
