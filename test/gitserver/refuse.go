package gitserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Feature is an optional feature that some git hosts lack.
type Feature uint8

// The features.
const (
	// Thin is packs with deltas against objects that the client has.
	Thin Feature = 1 << iota
	// Shallow is depth and shallow boundaries.
	Shallow
	// Filter is a partial clone (filter=blob:none).
	Filter
	// SHAWants is a fetch of a commit that is not the tip of a branch or tag.
	SHAWants
	// SingleAck is a fetch without multi_ack_detailed, which Azure DevOps treats as an error.
	SingleAck
)

// Refuse makes the server lack these features, from the next request on: it does not advertise them, speaks only
// protocol v0, and rejects clients that use them anyway. Without arguments it supports all features again.
func (s *Server) Refuse(features ...Feature) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = 0
	for _, f := range features {
		s.refuse |= f
	}
}

// capabilities returns the names by which protocol v0 advertises the refused features.
func (f Feature) capabilities() []string {
	var words []string
	for _, c := range []struct {
		feature Feature
		words   []string
	}{
		{Thin, []string{"thin-pack"}},
		{Shallow, []string{"shallow", "deepen-since", "deepen-not", "deepen-relative"}},
		{Filter, []string{"filter"}},
		{SHAWants, []string{"allow-tip-sha1-in-want", "allow-reachable-sha1-in-want"}},
	} {
		if f&c.feature != 0 {
			words = append(words, c.words...)
		}
	}
	return words
}

// strip removes the refused capabilities from a ref advertisement.
func (f Feature) strip(advertisement []byte) []byte {
	var out bytes.Buffer
	for line := range pktLines(advertisement) {
		if line == nil {
			out.WriteString("0000")
			continue
		}
		refPart, caps, found := bytes.Cut(line, []byte{0})
		if !found {
			out.Write(pktLine(string(line)))
			continue
		}
		supported := slices.DeleteFunc(strings.Fields(string(caps)), func(c string) bool {
			return slices.Contains(f.capabilities(), c)
		})
		out.Write(pktLine(string(refPart) + "\x00" + strings.Join(supported, " ") + "\n"))
	}
	return out.Bytes()
}

// maxRequest is the maximum size of an upload-pack request, which has wants and haves, in bytes.
const maxRequest = 16 << 20

// checkUploadPack returns the body of an upload-pack request. It removes thin-pack if that is refused, because git clients
// request it unconditionally. If the request needs another refused feature, it returns the error message of a server that
// lacks the feature.
func (s *Server) checkUploadPack(r *http.Request, repo string, refuse Feature) (body *bytes.Reader, complaint string, err error) {
	raw := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		if raw, err = gzip.NewReader(r.Body); err != nil {
			return nil, "", fmt.Errorf("request body: %w", err)
		}
	}
	whole, err := io.ReadAll(io.LimitReader(raw, maxRequest+1))
	if err != nil {
		return nil, "", fmt.Errorf("request body: %w", err)
	}
	if len(whole) > maxRequest {
		return nil, "", errors.New("request body: too long")
	}
	var tips map[string]bool
	if refuse&SHAWants != 0 {
		if tips, err = s.tips(r.Context(), repo); err != nil {
			return nil, "", err
		}
	}
	var out bytes.Buffer
	first := true
	for line := range pktLines(whole) {
		if line == nil {
			out.WriteString("0000")
			continue
		}
		text := string(line)
		if refuse&SingleAck != 0 && first && !strings.Contains(text, " multi_ack_detailed") {
			return nil, "multi_ack_detailed is required", nil
		}
		first = false
		word, rest, _ := strings.Cut(text, " ")
		switch {
		case refuse&Shallow != 0 && (word == "shallow" || strings.HasPrefix(word, "deepen")):
			return nil, "shallow is not supported", nil
		case word == "want":
			id, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			if tips != nil && !tips[id] {
				return nil, "not our ref " + id, nil
			}
			if refuse&Thin != 0 {
				text = strings.Replace(text, " thin-pack", "", 1)
			}
		}
		out.Write(pktLine(text))
	}
	return bytes.NewReader(out.Bytes()), "", nil
}

// tips returns the objects that a repository advertises.
func (s *Server) tips(ctx context.Context, repo string) (map[string]bool, error) {
	cmd := exec.CommandContext(ctx, "git", "-C", filepath.Join(s.root, filepath.FromSlash(repo)), "show-ref", "--head", "--dereference")
	cmd.Env = append(Env(), configEnv([2]string{"safe.directory", "*"})...)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the refs of %s: %w", repo, err)
	}
	tips := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		id, _, _ := strings.Cut(line, " ")
		tips[id] = true
	}
	return tips, nil
}

// pktLine frames a line of git's protocol.
func pktLine(line string) []byte { return fmt.Appendf(nil, "%04x%s", len(line)+4, line) }

// pktLines yields the lines of a protocol message; nil is a flush packet. It ends with the message, or at the first
// invalid packet.
func pktLines(message []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(message) >= 4 {
			size, err := strconv.ParseUint(string(message[:4]), 16, 16)
			if err != nil || size != 0 && size < 4 || int(size) > len(message) {
				return
			}
			if size == 0 {
				message = message[4:]
				if !yield(nil) {
					return
				}
				continue
			}
			line := message[4:size]
			message = message[size:]
			if !yield(line) {
				return
			}
		}
	}
}
