// Package oci reads artifacts of a registry as commits.
//
// An artifact is an OCI image manifest with one layer, a tar archive with gzip, as flux push artifact and oras push make them. Its commit has the
// content of the layer as its tree, no parent, and a message that names the digest of the manifest. All of the commit follows from this digest,
// so every client that imports an artifact gets the same commit id, and one that gets another has another artifact.
//
// Both a registry and the users that push to it may be hostile: manifests, layers and what they unpack to are bounded, and nothing is unpacked to a file
// system. Credentials go to the host of the registry, or to a token server that the Secret itself names. Manifests and tokens follow no redirect.
// Layers do, because registries keep them in object storage: without credentials, and only if the content has the digest.
//
// The client is our own, because oras-go sends a password to any token server that a registry names, and follows redirects for every request.
package oci
