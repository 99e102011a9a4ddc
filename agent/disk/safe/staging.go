package safe

// StagingDir is the folder of staged files, in the .stoker of each area.
const StagingDir = "staging"

// Staging has the open staging folders of areas. An area is the top directory of a mount, because a rename cannot cross mounts.
type Staging struct {
	own    *AgentFolder
	byArea map[string]*Folder
}

// NewStaging returns no open folders yet. own is .stoker of the data directory.
func NewStaging(own *AgentFolder) *Staging {
	return &Staging{own: own, byArea: map[string]*Folder{}}
}

// Close closes the folders.
func (s *Staging) Close() {
	for _, folder := range s.byArea {
		folder.Close()
	}
	clear(s.byArea)
}

// In returns the open staging folder of an area, or nil.
func (s *Staging) In(area string) *Folder { return s.byArea[area] }

// OpenAll opens the staging folder of each area, and makes it if create is set.
func (s *Staging) OpenAll(cur *Cursor, areas []string, create bool) error {
	for _, a := range areas {
		if _, err := s.Open(cur, a, create); err != nil {
			return WriteError(err, "open the staging folder below %q", a)
		}
	}
	return nil
}

// Open opens the staging folder of one area, and makes it if create is set.
func (s *Staging) Open(cur *Cursor, area string, create bool) (*Folder, error) {
	folder, err := s.open(cur, area, create)
	if err == nil {
		s.byArea[area] = folder
	}
	return folder, err
}

func (s *Staging) open(cur *Cursor, area string, create bool) (*Folder, error) {
	own, vol := s.own.Folder, s.own.Vol
	if area != "" {
		top, err := cur.At(area)
		if err != nil {
			return nil, err
		}
		open := top.Open
		if create {
			open = func(string) (*Folder, error) { return vol.OwnFolder(top) }
		}
		if own, err = open(OwnDir); err != nil {
			return nil, err
		}
		defer own.Close()
	}
	if !create {
		return own.Open(StagingDir)
	}
	staging, err := vol.OpenOrMake(own, StagingDir)
	if err != nil {
		return nil, WriteError(err, "make %s", own.Join(StagingDir))
	}
	if area != "" { // the sync of the top .stoker after writing the journal covers its staging folder
		if err := vol.SyncDir(own); err != nil {
			staging.Close()
			return nil, err
		}
	}
	return staging, nil
}
