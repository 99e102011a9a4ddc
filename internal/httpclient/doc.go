// Package httpclient makes every HTTP client of the product but those of client-go. A Policy says how a client connects and what it accepts. All
// bound the headers of answers, and none follows a redirect to another origin, which would get the credential. test/hostile runs all clients
// against the same hostile server.
package httpclient

import _ "golang.org/x/crypto/x509roots/fallback" // images have no CA certificates; those of the system come first
