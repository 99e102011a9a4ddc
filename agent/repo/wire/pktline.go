package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	capsPeek    = 8 << 10 // bytes: the maximum length of the first line of an advertisement
	refusalPeek = 4 << 10 // bytes: how much of a refusal is read
)

// peekCapabilities returns the capabilities of an advertisement without consuming it: go-git drops those that it does not use. It
// returns nil if it finds none; go-git then reports the error. quote makes text of the server safe to print.
func peekCapabilities(br *bufio.Reader, u URL, quote func(string) string) (*capability.List, error) {
	head, err := peekLine(br)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_, head, ok := bytes.Cut(head, []byte{0})
	line, _, ended := bytes.Cut(head, []byte{'\n'})
	if !ok || !ended {
		return nil, nil
	}
	caps := capability.NewList()
	if err := caps.Decode(line); err != nil {
		return nil, nil //nolint:nilerr // go-git reports it
	}
	for _, format := range caps.Get("object-format") {
		if format != "sha1" {
			return nil, failure.New(v1alpha1.ReasonUnsupportedRepository,
				"%s is a repository of object format %s; only sha1 is supported", u, quote(format))
		}
	}
	return caps, nil
}

// peekLine returns what has arrived, at least to the end of the line with the capabilities. It does not wait for more: over ssh,
// nothing follows until the client sends a request.
func peekLine(br *bufio.Reader) ([]byte, error) {
	for n := 1; ; {
		if _, err := br.Peek(n); err != nil {
			head, _ := br.Peek(br.Buffered())
			return head, err
		}
		head, _ := br.Peek(br.Buffered())
		if nul := bytes.IndexByte(head, 0); nul >= 0 && bytes.IndexByte(head[nul:], '\n') >= 0 {
			return head, nil
		}
		if len(head) >= 4 && string(head[:4]) == "0000" || len(head) == br.Size() {
			return head, nil
		}
		n = len(head) + 1
	}
}

// peekRefusal returns a refusedError if the answer starts with an ERR line. quote makes its text safe to print.
func peekRefusal(br *bufio.Reader, quote func(string) string) error {
	head, _ := br.Peek(8) // the reader of the answer gets the error again
	if len(head) < 8 || string(head[4:]) != "ERR " {
		return nil
	}
	n, _ := strconv.ParseUint(string(head[:4]), 16, 16) // 0 if it is not a number
	line, _ := br.Peek(int(min(n, uint64(br.Size()))))
	return &refusedError{quote(string(line[min(8, len(line)):]))}
}

// sideband reads the data channel of a sideband stream. Unlike go-git's demultiplexer, it returns bytes as soon as they arrive,
// and it returns messages on the error channel as an abortError.
type sideband struct {
	lines    *pktline.Scanner
	rest     []byte
	progress io.Writer // receives the messages for the user; nil drops them
	quote    func(string) string
}

const (
	sidebandData     = 1
	sidebandProgress = 2
	sidebandError    = 3
)

func newSideband(r io.Reader, progress io.Writer, quote func(string) string) *sideband {
	return &sideband{lines: pktline.NewScanner(r), progress: progress, quote: quote}
}

func (b *sideband) Read(p []byte) (int, error) {
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
		case sidebandData:
			b.rest = line[1:]
		case sidebandProgress:
			if b.progress != nil {
				_, _ = b.progress.Write(line[1:]) // a buffer in memory
			}
		case sidebandError:
			return 0, &abortError{b.quote(string(line[1:]))}
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}
