package repo

import (
	"io"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
)

// band takes the pack out of a sideband stream. Other than go-git's demultiplexer it hands on what has come at once, and
// keeps what the server says on the error channel apart from everything else that can go wrong.
type band struct {
	lines *pktline.Scanner
	rest  []byte
}

const (
	bandData  = 1
	bandError = 3
)

func newBand(r io.Reader) *band { return &band{lines: pktline.NewScanner(r)} }

func (b *band) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if !b.lines.Scan() {
			if err := b.lines.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		line := b.lines.Bytes()
		if len(line) == 0 { // flush: the end
			return 0, io.EOF
		}
		switch line[0] {
		case bandData:
			b.rest = line[1:]
		case bandError:
			return 0, &gaveUpError{quoted(string(line[1:]))}
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}
