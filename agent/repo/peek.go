package repo

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	capsPeek    = 8 << 10 // bytes within which the first line of an advertisement ends
	refusalPeek = 4 << 10 // bytes of a refusal that are read
)

// peekCapabilities reads the capabilities of an advertisement ahead, because go-git drops those that it does not use. It
// returns nil where it finds none: go-git then says what is wrong.
func peekCapabilities(br *bufio.Reader, u URL) (*capability.List, error) {
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
		return nil, nil //nolint:nilerr // see above
	}
	for _, format := range caps.Get("object-format") {
		if format != "sha1" {
			return nil, failure.New(v1alpha1.ReasonUnsupportedRepository,
				"%s is a repository of object format %s; only sha1 is read", u, quoted(format))
		}
	}
	return caps, nil
}

// peekLine returns what is there up to the end of the line with the capabilities. It waits for no more than that: over
// ssh nothing follows until we speak.
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

// peekRefusal looks for an ERR line, by which a server refuses.
func peekRefusal(br *bufio.Reader) error {
	head, _ := br.Peek(8) // an error comes again when the answer is read
	if len(head) < 8 || string(head[4:]) != "ERR " {
		return nil
	}
	n, _ := strconv.ParseUint(string(head[:4]), 16, 16) // 0 for nonsense
	line, _ := br.Peek(int(min(n, uint64(br.Size()))))
	return &refusedError{quoted(string(line[min(8, len(line)):]))}
}
