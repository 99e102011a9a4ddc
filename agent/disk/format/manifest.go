// Package format reads and writes the two tables in .stoker: the manifest, which lists the files that the agent owns, and the
// journal, which lists the steps of the sync that is being applied. The tables may be damaged, and other programs can write to
// their directory, so the package checks every length. It checks the paths of a journal; callers check those of a manifest.
package format

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// The manifest is a table sorted by path. Lookups read single blocks of the file:
//
//	magic
//	blocks   records sorted by path, each without the prefix shared with the one before; about 16 KiB per block
//	header   JSON of plan.Header
//	index    per block: first path, length, CRC-32C, number of files, number of directories
//	footer   offset of the header, lengths of header and index, number of blocks, CRC-32C of header, index and footer, magic
//
// A Manifest keeps in memory only the header, the index (about 30 kB for 100,000 files) and the block that was decoded last.
const (
	manifestMagic = "stokerm1"
	footerSize    = 8 + 4 + 4 + 4 + 4 + 8 // header offset, header, index, blocks, CRC, magic
	blockSize     = 16 << 10
	maxBlock      = 1 << 20
	maxHeader     = 4 << 20
	maxIndex      = 16 << 20
	maxManifest   = 4 << 30
	maxBlockPaths = 16 << 20 // total length of the paths of one block, after adding their shared prefixes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type block struct {
	first       string
	off         int64
	size        int
	sum         uint32
	files, dirs int
}

// Manifest is an open manifest file. It implements plan.Manifest. Several goroutines may use it, even after disk.Dir has
// replaced the file by a new manifest: the open file stays readable.
type Manifest struct {
	f       io.ReaderAt  // nil if there is no file
	Info    fs.FileInfo  // of f when it was opened
	Close   func() error // closes f
	header  plan.Header
	sum     uint32 // the checksum in the footer
	blocks  []block
	damaged atomic.Bool // a block could not be read since the manifest was opened

	mu      sync.Mutex
	cached  int // index of the block in decoded, or -1
	decoded []Record
}

// NoManifest returns an empty manifest without a file.
func NoManifest() *Manifest { return &Manifest{cached: -1, Close: func() error { return nil }} }

// OpenManifest reads the header and the index, and verifies the checksum of every block, so that damage is found before the
// manifest is used.
//
// maxFiles is the limit of a plan. No agent writes a manifest of more than twice maxFiles files, so such a manifest counts as
// damaged. The manifest closes f; after an error, the caller does.
func OpenManifest(f *os.File, maxFiles int) (*Manifest, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	m, err := readManifest(f, fi.Size())
	if err != nil {
		return nil, err
	}
	if m.header.Files > 2*maxFiles {
		return nil, safe.Damaged("the manifest has too many files: %d", m.header.Files)
	}
	m.Info, m.Close = fi, f.Close
	return m, nil
}

// Missing reports whether the manifest has no file, as returned by NoManifest.
func (m *Manifest) Missing() bool { return m.f == nil }

// Damaged reports whether a block could not be read since the manifest was opened.
func (m *Manifest) Damaged() bool { return m.damaged.Load() }

// Check decodes every block. OpenManifest verifies only the checksums, and a block with a valid checksum may still be malformed.
func (m *Manifest) Check() error {
	var buf []byte
	var list []Record
	var err error
	for i := range m.blocks {
		if list, err = m.decode(i, &buf, list[:0]); err != nil {
			return err
		}
	}
	return nil
}

func readManifest(f io.ReaderAt, size int64) (*Manifest, error) {
	m := NoManifest()
	m.f = f
	if err := m.load(size); err != nil {
		return nil, err
	}
	buf := make([]byte, 0, 2*blockSize)
	for i := range m.blocks {
		if _, err := m.read(i, &buf); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// load reads the footer, the header and the index.
func (m *Manifest) load(size int64) error {
	if size < int64(len(manifestMagic)+footerSize) {
		return safe.Damaged("the manifest has only %d bytes", size)
	}
	if size > maxManifest {
		return safe.Damaged("the manifest has %d bytes; the limit is %d", size, int64(maxManifest))
	}
	foot := make([]byte, footerSize)
	if _, err := m.f.ReadAt(foot, size-footerSize); err != nil {
		return safe.Damaged("read the footer of the manifest: %w", err)
	}
	if string(foot[24:]) != manifestMagic {
		return safe.Damaged("the manifest has an unknown format")
	}
	off := binary.LittleEndian.Uint64(foot)
	hlen, ilen := binary.LittleEndian.Uint32(foot[8:]), binary.LittleEndian.Uint32(foot[12:])
	n, sum := binary.LittleEndian.Uint32(foot[16:]), binary.LittleEndian.Uint32(foot[20:])
	if hlen > maxHeader || ilen > maxIndex || off > math.MaxInt64 || int64(off)+int64(hlen)+int64(ilen) != size-footerSize {
		return safe.Damaged("the manifest's lengths do not match its size")
	}
	b := make([]byte, int(hlen)+int(ilen))
	if _, err := m.f.ReadAt(b, int64(off)); err != nil {
		return safe.Damaged("read the manifest's index: %w", err)
	}
	if crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, foot[:20]) != sum {
		return safe.Damaged("wrong checksum of the manifest's index")
	}
	m.sum = sum
	var err error
	if m.header, err = decodeHeader(b[:hlen]); err != nil {
		return safe.Damaged("the manifest's header: %w", err)
	}
	return m.index(b[hlen:], int(n), int64(off))
}

// index decodes the index b of n blocks, the last of which ends at offset end.
func (m *Manifest) index(b []byte, n int, end int64) error {
	d := &decoder{b: b}
	off, prev, files := int64(len(manifestMagic)), "", 0
	m.blocks = make([]block, 0, min(n, len(b)/8))
	for i := 0; i < n && d.err == nil; i++ {
		x := block{first: d.string(safe.MaxPath), off: off, size: d.length(maxBlock)}
		x.sum = d.uint32()
		x.files, x.dirs = d.length(maxBlock), d.length(maxBlock)
		if i > 0 && x.first <= prev {
			d.fail("the manifest's blocks are not sorted")
		}
		off, prev, files = off+int64(x.size), x.first, files+x.files
		m.blocks = append(m.blocks, x)
	}
	if d.err == nil && (len(d.b) != 0 || off != end) {
		d.fail("the manifest's index does not match its blocks")
	}
	m.header.Files = files
	return d.err
}

// read returns the verified bytes of a block.
func (m *Manifest) read(i int, buf *[]byte) ([]byte, error) {
	x := &m.blocks[i]
	if cap(*buf) < x.size {
		*buf = make([]byte, x.size)
	}
	b := (*buf)[:x.size]
	if _, err := m.f.ReadAt(b, x.off); err != nil {
		m.damaged.Store(true)
		return nil, safe.Damaged("read block %d of the manifest: %w", i, err)
	}
	if crc32.Checksum(b, castagnoli) != x.sum {
		m.damaged.Store(true)
		return nil, safe.Damaged("wrong checksum of manifest block %d", i)
	}
	return b, nil
}

// decode appends the records of a block to list.
func (m *Manifest) decode(i int, buf *[]byte, list []Record) ([]Record, error) {
	b, err := m.read(i, buf)
	if err != nil {
		return nil, err
	}
	x := &m.blocks[i]
	d := &decoder{b: b}
	var path []byte
	prev, files, dirs, bytes := "", 0, 0, 0
	for first := true; len(d.b) > 0; first = false {
		r := readRecord(d, &path)
		if d.err != nil {
			break
		}
		switch {
		case first && r.Path != x.first, !first && r.Path <= prev:
			d.fail("block %d of the manifest is not sorted", i)
		case r.Dir:
			dirs++
		default:
			files++
		}
		if bytes += len(r.Path); bytes > maxBlockPaths {
			d.fail("block %d of the manifest has paths of more than %d bytes", i, maxBlockPaths)
		}
		prev = r.Path
		list = append(list, r)
	}
	if d.err == nil && (files != x.files || dirs != x.dirs) {
		d.fail("wrong number of records in manifest block %d", i)
	}
	if d.err == nil && i+1 < len(m.blocks) && prev >= m.blocks[i+1].first {
		d.fail("blocks %d and %d of the manifest overlap", i, i+1)
	}
	if d.err != nil {
		m.damaged.Store(true)
	}
	return list, d.err
}

// Header returns the header. It is zero if there is no manifest.
func (m *Manifest) Header() plan.Header { return m.header }

// Get returns the record of one file. Calls in the order of paths decode each block only once.
func (m *Manifest) Get(path string) (plan.Owned, bool, error) {
	r, ok, err := m.Lookup(path)
	if err != nil || !ok || r.Dir {
		return plan.Owned{}, false, err
	}
	return r.Owned, true, nil
}

// Lookup returns the record of a file or directory.
func (m *Manifest) Lookup(path string) (Record, bool, error) {
	i := m.blockOf(path)
	if i < 0 {
		return Record{}, false, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cached != i {
		m.cached = -1
		var buf []byte
		list, err := m.decode(i, &buf, m.decoded[:0])
		if err != nil {
			return Record{}, false, err
		}
		m.decoded, m.cached = list, i
	}
	k := sort.Search(len(m.decoded), func(k int) bool { return m.decoded[k].Path >= path })
	if k == len(m.decoded) || m.decoded[k].Path != path {
		return Record{}, false, nil
	}
	return m.decoded[k], true, nil
}

// blockOf returns the index of the only block that can contain path, or -1.
func (m *Manifest) blockOf(path string) int {
	return sort.Search(len(m.blocks), func(k int) bool { return m.blocks[k].first > path }) - 1
}

// All yields the records of files whose path starts with prefix, sorted by path.
func (m *Manifest) All(prefix string) iter.Seq2[plan.Owned, error] {
	return func(yield func(plan.Owned, error) bool) {
		for r, err := range m.records(prefix) {
			if err == nil && r.Dir {
				continue
			}
			if !yield(r.Owned, err) {
				return
			}
		}
	}
}

// records is All including the records of directories.
func (m *Manifest) records(prefix string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		var buf []byte
		var list []Record
		var err error
		for i := max(0, m.blockOf(prefix)); i < len(m.blocks); i++ {
			if list, err = m.decode(i, &buf, list[:0]); err != nil {
				yield(Record{}, err)
				return
			}
			for k := range list {
				switch p := list[k].Path; {
				case strings.HasPrefix(p, prefix):
					if !yield(list[k], nil) {
						return
					}
				case p > prefix:
					return
				}
			}
		}
	}
}

// header is the encoding of plan.Header in our files.
type header struct {
	Ref      string        `json:"ref,omitempty"`
	Commit   string        `json:"commit"`
	Rules    string        `json:"rules,omitempty"`
	Mappings []plan.Origin `json:"mappings,omitempty"`
	Files    int           `json:"files"`
	Complete bool          `json:"complete"`
	Earlier  []string      `json:"earlier,omitempty"`
}

func encodeHeader(h plan.Header) ([]byte, error) {
	var earlier []string
	for _, id := range h.Earlier {
		earlier = append(earlier, id.String())
	}
	return json.Marshal(header{h.Ref, h.Commit.String(), h.Rules, h.Mappings, h.Files, h.Complete, earlier})
}

func decodeHeader(b []byte) (plan.Header, error) {
	var h header
	if err := json.Unmarshal(b, &h); err != nil {
		return plan.Header{}, err
	}
	commit, err := plan.ParseID(h.Commit)
	if err != nil {
		return plan.Header{}, err
	}
	var earlier []plan.ID
	for _, text := range h.Earlier {
		id, err := plan.ParseID(text)
		if err != nil {
			return plan.Header{}, err
		}
		earlier = append(earlier, id)
	}
	return plan.Header{
		Ref: h.Ref, Commit: commit, Rules: h.Rules, Mappings: h.Mappings, Files: h.Files, Complete: h.Complete, Earlier: earlier,
	}, nil
}
