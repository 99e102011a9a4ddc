package disk

import (
	"os"

	"stoker.io/stoker/agent/disk/lostfound"
)

// Lost is an entry of lost+found.
type Lost = lostfound.Entry

// LostAndFound lists the entries, oldest first.
func (d *Dir) LostAndFound() ([]Lost, error) { return d.lost.List() }

// LostAndFoundBytes returns the size of lost+found.
func (d *Dir) LostAndFoundBytes() (int64, error) { return d.lost.Bytes() }

// LostAndFoundMax returns the size above which its oldest folders are removed.
func (d *Dir) LostAndFoundMax() int64 { return d.o.LostFoundMax }

// OpenLost opens the file of an entry. Only regular files can be read; a saved symbolic link is not followed.
func (d *Dir) OpenLost(l Lost) (*os.File, error) {
	f, _, err := d.lost.Open(l)
	return f, err
}
