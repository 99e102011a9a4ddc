package format

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Record is one entry of the manifest: an owned file, or a directory that the agent created.
type Record struct {
	plan.Owned
	Dir bool
}

const (
	flagDir = 1 << iota
	flagExec
	flagHave         // Have differs from Want and follows it
	knownRecordFlags = flagDir | flagExec | flagHave
)

// appendRecord encodes r after a record of path prev: the length of the shared prefix, the rest of the path, and the fields.
func appendRecord(b []byte, prev string, r *Record) []byte {
	shared := 0
	for shared < len(prev) && shared < len(r.Path) && prev[shared] == r.Path[shared] {
		shared++
	}
	b = binary.AppendUvarint(b, uint64(shared))
	b = appendString(b, r.Path[shared:])
	if r.Dir {
		return append(b, flagDir)
	}
	var flags byte
	if r.Exec {
		flags |= flagExec
	}
	if r.Have != r.Want {
		flags |= flagHave
	}
	b = append(append(b, flags), r.Want[:]...)
	if r.Have != r.Want {
		b = append(b, r.Have[:]...)
	}
	b = binary.AppendUvarint(b, uint64(r.Size))
	b = binary.AppendVarint(b, r.Mtime)
	return binary.AppendUvarint(b, uint64(r.Origin))
}

// readRecord decodes what appendRecord wrote. path has the path of the previous record, and after the call the path of this one.
func readRecord(d *decoder, path *[]byte) Record {
	shared := d.length(len(*path))
	*path = append((*path)[:shared], d.bytes(safe.MaxPath)...)
	r := Record{}
	r.Path = string(*path)
	flags := d.byte()
	if flags&^knownRecordFlags != 0 {
		d.fail("record %q has unknown flags %#x", r.Path, flags)
	}
	if flags&flagDir != 0 {
		r.Dir = true
		return r
	}
	r.Exec = flags&flagExec != 0
	r.Want = d.id()
	r.Have = r.Want
	if flags&flagHave != 0 {
		r.Have = d.id()
	}
	r.Size = int64(d.uvarint(math.MaxInt64))
	r.Mtime = d.varint()
	r.Origin = uint16(d.uvarint(math.MaxUint16))
	return r
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decoder decodes our own binary files, which may be damaged. It never reads past their end, and after the first error
// every value is zero.
type decoder struct {
	b    []byte    // not decoded yet
	more io.Reader // what follows b; nil if nothing does
	buf  []byte    // the memory of b
	err  error
}

// need makes b hold n bytes, or all that is left. It invalidates slices of the earlier b.
func (d *decoder) need(n int) {
	if len(d.b) >= n || d.more == nil {
		return
	}
	if cap(d.buf) < n {
		d.buf = make([]byte, max(n, 64<<10))
	}
	d.buf = d.buf[:cap(d.buf)]
	have := copy(d.buf, d.b)
	got, err := io.ReadAtLeast(d.more, d.buf[have:], n-have)
	d.b = d.buf[:have+got]
	if err != nil {
		d.more = nil
		if d.err == nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			d.err, d.b = err, nil
		}
	}
}

// end reports whether everything was decoded.
func (d *decoder) end() bool {
	d.need(1)
	return len(d.b) == 0
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = safe.Damaged(format, args...)
	}
	d.b, d.more = nil, nil
}

func (d *decoder) uvarint(limit uint64) uint64 {
	d.need(binary.MaxVarintLen64)
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		d.fail("a number is truncated or over %d", limit)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	d.need(binary.MaxVarintLen64)
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("a number is truncated")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) length(limit int) int { return int(d.uvarint(uint64(limit))) }

func (d *decoder) byte() byte {
	if d.end() {
		d.fail("unexpected end")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) raw(n int) []byte {
	if d.need(n); n > len(d.b) {
		d.fail("unexpected end")
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

// bytes reads a length and that many bytes. They are valid until the next value is read.
func (d *decoder) bytes(limit int) []byte { return d.raw(d.length(limit)) }

func (d *decoder) string(limit int) string { return string(d.bytes(limit)) }

func (d *decoder) uint32() uint32 {
	if b := d.raw(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) id() (id plan.ID) {
	copy(id[:], d.raw(len(id)))
	return id
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

// Names of files in .stoker.
const (
	ManifestFile = "manifest"
	JournalFile  = "journal"
	UndoFile     = "undo" // the journal of a run that is rolled back
)

// SlotName is the staging name of a change.
func SlotName(change int) string { return strconv.Itoa(change) }

// AsideName is the staging name of what a change replaced on a file system that cannot exchange two names.
func AsideName(change int) string { return strconv.Itoa(change) + ".old" }

var folderName = regexp.MustCompile(`^\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{7}(-\d{1,4})?(-undo)?$`)

// ValidLostFoundName reports whether s can be the name of a folder in lost+found.
func ValidLostFoundName(s string) bool { return folderName.MatchString(s) }

// TreeName is the staging name of the directory Dirs[index] of the journal, which is staged with all its files.
func TreeName(index int32) string { return "d" + strconv.Itoa(int(index)) }
