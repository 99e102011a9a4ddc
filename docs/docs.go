// Package docs embeds how-to/troubleshooting.md, which "stoker ui" shows without a connection to the Internet.
package docs

import _ "embed"

// Troubleshooting is how-to/troubleshooting.md: what each reason means, and what to do.
//
//go:embed how-to/troubleshooting.md
var Troubleshooting string
