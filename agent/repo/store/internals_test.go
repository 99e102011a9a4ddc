package store

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// An index stores offsets from 2 GiB on in a separate table.
func TestIndexOffsetsBeyond2GiB(t *testing.T) {
	recs := []record{
		{id: plan.ID{1}, off: 12}, {id: plan.ID{0xff, 1}, off: wideOffset - 1}, {id: plan.ID{7}, off: wideOffset},
		{id: plan.ID{7, 1}, off: 5 << 32}, {id: plan.ID{0}, off: 6 << 32},
	}
	order, err := sortByID(recs)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "x.idx")
	var b bytes.Buffer
	trailer := [packTrailerSize]byte{42}
	require.NoError(t, writeIndex(&b, recs, order, trailer))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	x, err := openIndex(f, trailer)
	require.NoError(t, err)
	defer func() { require.NoError(t, x.close()) }()
	for _, r := range recs {
		t.Run(fmt.Sprintf("offset %#x", r.off), func(t *testing.T) {
			off, ok, err := x.find(r.id)
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, r.off, off)
		})
	}
	_, ok, err := x.find(plan.ID{7, 0, 1})
	require.NoError(t, err)
	assert.False(t, ok)
	_, err = openIndex(f, [packTrailerSize]byte{43})
	require.ErrorIs(t, err, ErrCorrupt, "the index belongs to another pack")
}

// Objects keep their content while others are allocated and freed. Objects over maxInMemory, or over the budget, are in a file.
func TestScratchKeepsContent(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	s := newScratch(func() (*os.File, error) { return createUnnamed(root, ".") }, scratchSizes{maxInMemory: 300, memoryBudget: 1000})
	defer s.close()
	rng := rand.New(rand.NewPCG(1, 2))
	type object struct {
		c    *scratchObject
		want []byte
	}
	var live []object
	buf := make([]byte, 64)
	for step := range 3000 {
		if len(live) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(live))
			o := live[i]
			off := rng.Int64N(o.c.size + 1)
			var got bytes.Buffer
			require.NoError(t, o.c.copyTo(&got, off, o.c.size-off, buf))
			require.Equal(t, string(o.want[off:]), got.String(), "step %d", step)
			o.c.free()
			live = append(live[:i], live[i+1:]...)
			continue
		}
		want := bytes.Repeat([]byte{byte(step)}, rng.IntN(500))
		c, err := s.alloc(int64(len(want)))
		require.NoError(t, err)
		for rest := want; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(100))
			_, err := c.Write(rest[:n])
			require.NoError(t, err)
			rest = rest[n:]
		}
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, ErrCorrupt, "a write beyond the size of the object")
		require.LessOrEqual(t, s.memoryUsed, int64(1000))
		live = append(live, object{c, want})
	}
	for _, o := range live {
		o.c.free()
	}
	assert.Zero(t, s.memoryUsed)
	assert.Empty(t, s.regions)
	names, err := os.ReadDir(root.Name())
	require.NoError(t, err)
	assert.Empty(t, names, "the scratch file was unlinked when it was created")
}

func TestTrailerHasher(t *testing.T) {
	text := []byte(strings.Repeat("the quick brown fox ", 20))
	want := sha1.Sum(text[:len(text)-packTrailerSize])
	for piece := 1; piece < len(text); piece++ {
		h := trailerHasher{sum: sha1.New()}
		for rest := text; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
			_, _ = h.Write(rest[:min(piece, len(rest))])
		}
		require.Equal(t, want[:], h.sum.Sum(nil), "written in pieces of %d bytes", piece)
		require.Equal(t, text[len(text)-packTrailerSize:], h.tail)
	}
}

func TestEntryHeaders(t *testing.T) {
	for _, size := range []int64{0, 1, 15, 16, 2047, 2048, 1 << 20, 1<<40 + 5} {
		for _, k := range []kind{kindCommit, kindTree, kindBlob, kindTag} {
			t.Run(fmt.Sprintf("kind %d of %d bytes", k, size), func(t *testing.T) {
				f := newInflater()
				header := EntryHeader(k, size)
				e, err := f.openEntry(bytes.NewReader(header), 0, int64(len(header)))
				require.NoError(t, err)
				assert.Equal(t, entry{kind: k, size: size}, e)
			})
		}
	}
	for _, back := range []int64{1, 127, 128, 129, 16511, 16512, 1 << 35} {
		t.Run(fmt.Sprintf("delta base %d bytes before", back), func(t *testing.T) {
			header := append(EntryHeader(kindOffset, 3), backward(back)...)
			e, err := newInflater().openEntry(bytes.NewReader(header), 0, int64(len(header)))
			require.NoError(t, err)
			assert.Equal(t, back, e.distance)
		})
	}
}

func TestEndlessEntryHeaders(t *testing.T) {
	endless := bytes.Repeat([]byte{0xff}, 30)
	for name, header := range map[string][]byte{
		"size":     endless,
		"distance": append(EntryHeader(kindOffset, 3), endless...),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newInflater().openEntry(bytes.NewReader(header), 0, int64(len(header)))
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
}

func TestParseTree(t *testing.T) {
	entry := func(mode, name string) string { return mode + " " + name + "\x00" + strings.Repeat("i", 20) }
	for name, tree := range map[string]string{
		"an unknown mode":              entry("777777", "a"),
		"a malformed mode":             entry("10064x", "a"),
		"no mode":                      entry("", "a"),
		"no name":                      entry("100644", ""),
		"a slash in a name":            entry("100644", "a/b"),
		"a name twice":                 entry("100644", "a") + entry("100644", "a"),
		"not sorted":                   entry("100644", "b") + entry("100644", "a"),
		"a directory sorted as a file": entry("40000", "a") + entry("100644", "a.b"),
		"a short id":                   entry("100644", "a")[:20],
		"no NUL":                       "100644 abc",
		"junk":                         "junk",
	} {
		t.Run("malformed: "+name, func(t *testing.T) {
			_, err := parseTree(plan.ID{}, []byte(tree))
			repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
		})
	}
	got, err := parseTree(plan.ID{}, []byte(entry("100664", "a")+entry("100644", "a.b")+entry("040000", "a0")+entry("100755", "b")+
		entry("120000", "l")+entry("160000", "s")+entry("100644", "\xff\n")))
	require.NoError(t, err)
	var modes []plan.Mode
	for _, e := range got {
		modes = append(modes, e.Mode)
	}
	assert.Equal(t, []plan.Mode{plan.Regular, plan.Regular, plan.Directory, plan.Executable, plan.Symlink, plan.Submodule, plan.Regular}, modes)
}

func TestCommitSubject(t *testing.T) {
	header := "tree 1\nauthor A <a@example.com> 1 +0000\n"
	for name, c := range map[string]struct{ commit, want string }{
		"subject and body":                    {header + "\nFill tank 4\n\nIt was empty.\n", "Fill tank 4"},
		"empty lines before the subject":      {header + "\n\n  \n  Fill tank 4", "Fill tank 4"},
		"signature with an almost empty line": {header + "gpgsig -----BEGIN\n \n x\n -----END\n\nSigned\n", "Signed"},
		"empty message":                       {header + "\n", ""},
		"no message":                          {header, ""},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, commitSubject([]byte(c.commit))) })
	}
}

func TestSubjectLine(t *testing.T) {
	for name, c := range map[string]struct{ author, subject, want string }{
		"unprintable character": {"Li Wei <li@example.com>", "Fill  tank\x1b 4", "Fill tank 4 (Li Wei)"},
		"no author":             {"", "Fill tank 4", "Fill tank 4"},
		"no printable subject":  {"Li Wei <li@example.com>", "\x00", ""},
		"both too long": {strings.Repeat("b", 300) + " <b@example.com>", strings.Repeat("ä", 300),
			strings.Repeat("ä", 68) + "… (" + strings.Repeat("b", 53) + "…)"},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, subjectLine(c.author, c.subject)) })
	}
}

func TestDiskErrors(t *testing.T) {
	for _, errno := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS} {
		err := asDiskError(fmt.Errorf("write: %w", errno))
		repotest.RequireReason(t, v1alpha1.ReasonNoSpace, err)
	}
	err := asDiskError(io.ErrClosedPipe)
	assert.Equal(t, v1alpha1.Reason("none"), failure.Reason(err, "none"), "another error has no reason")
	assert.ErrorIs(t, err, io.ErrClosedPipe)
	assert.NoError(t, asDiskError(nil))
	assert.ErrorIs(t, asCorrupt(err), io.ErrClosedPipe)
	assert.NotErrorIs(t, asCorrupt(err), ErrCorrupt, "an error of the file does not mean that its data is corrupt")
}

// A read error of a repository of the user is not an error of the store.
func TestReadErrorOfObjects(t *testing.T) {
	g := repotest.NewSite(t, gitserver.Options{})
	commit := g.Push("first", repotest.Views(3))
	g.Repack()
	o, err := OpenObjects(t.Context(), filepath.Join(g.Dir, "objects"), Limits{}, nil)
	require.NoError(t, err)
	defer o.Close()
	s := openStore(t, t.TempDir())
	f, err := s.Begin(commit)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, o.dirs[0].packs[0].file.Close())
	_, copyErr := f.Copy(t.Context(), o, nil)
	for name, err := range map[string]error{"find": o.CheckObject(commit), "copy": copyErr} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, err, os.ErrClosed)
			_, own := errors.AsType[*DiskError](err)
			assert.False(t, own, "%v", err)
		})
	}
}

// rawPack builds packs by hand, including packs that git would never write.
type rawPack struct {
	buf   bytes.Buffer
	count uint32
}

// entry adds an entry that claims a type and a size, and returns its offset.
func (p *rawPack) entry(k kind, claimed int64, base []byte, content []byte) int64 {
	off := int64(packHeaderSize + p.buf.Len())
	p.buf.Write(EntryHeader(k, claimed))
	p.buf.Write(base)
	zw := zlib.NewWriter(&p.buf)
	_, _ = zw.Write(content)
	_ = zw.Close()
	p.count++
	return off
}

func (p *rawPack) object(k kind, content string) int64 {
	return p.entry(k, int64(len(content)), nil, []byte(content))
}

func (p *rawPack) refDelta(base plan.ID, delta []byte) int64 {
	return p.entry(kindRef, int64(len(delta)), base[:], delta)
}

func (p *rawPack) ofsDelta(base int64, delta []byte) int64 {
	return p.entry(kindOffset, int64(len(delta)), backward(int64(packHeaderSize+p.buf.Len())-base), delta)
}

// backward encodes the distance to a base.
func backward(n int64) []byte {
	b := []byte{byte(n & 0x7f)}
	for n >>= 7; n > 0; n >>= 7 {
		n--
		b = append([]byte{0x80 | byte(n&0x7f)}, b...)
	}
	return b
}

// bytes returns the pack with a valid checksum.
func (p *rawPack) bytes() []byte { return p.claiming(p.count) }

// claiming returns the pack with a header that announces this number of objects.
func (p *rawPack) claiming(objects uint32) []byte {
	b := append(PackHeader(int(objects)), p.buf.Bytes()...)
	sum := sha1.Sum(b)
	return append(b, sum[:]...)
}

// deltaOf returns a delta that claims the sizes of base and result, followed by ops.
func deltaOf(base, result int, ops ...byte) []byte {
	d := binary.AppendUvarint(nil, uint64(base))
	return append(binary.AppendUvarint(d, uint64(result)), ops...)
}

// appendText returns a delta that copies all of base and appends text.
func appendText(base, text string) []byte {
	ops := []byte{0x80 | 0x10 | 0x20, byte(len(base)), byte(len(base) >> 8), byte(len(text))}
	return deltaOf(len(base), len(base)+len(text), append(ops, text...)...)
}

// receive adds a pack to a store as a fetch does. A thin pack may use objects of the store as bases.
func receive(t testing.TB, s *testStore, pack []byte, thin bool) (*Received, error) {
	t.Helper()
	f, err := s.Begin(plan.ID{})
	require.NoError(t, err)
	defer f.Close()
	if thin {
		f.Base = plan.ID{1} // any commit: Receive only looks whether there is one
	}
	in, err := f.Receive(context.Background(), bytes.NewReader(pack))
	if err != nil {
		left, e := os.ReadDir(s.Dir() + "/" + packDir)
		require.NoError(t, e)
		for _, l := range left {
			require.NotContains(t, l.Name(), tempPrefix, "a failed pack leaves nothing behind")
		}
		return nil, err
	}
	require.NoError(t, f.Publish(in, false))
	return in, nil
}

// sha1Of returns the checksum at the end of a pack or index.
func sha1Of(b []byte) []byte {
	s := sha1.Sum(b)
	return s[:]
}
