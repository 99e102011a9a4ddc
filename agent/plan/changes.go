package plan

// Op is what happens to one path.
type Op uint8

// The operations of a plan, in the order in which a person reads them.
const (
	// Create writes a file where none is.
	Create Op = iota + 1
	// Update replaces a file that is there (also its mode alone: then ID equals FoundID).
	Update
	// Delete removes a file that is ours, or under prune mirror one that is in the way of nothing but not in git.
	Delete
	// Adopt writes nothing: what lies there is equal or equal in meaning, and its record is made or renewed.
	Adopt
	// Release writes nothing: the record goes, the file stays.
	Release
	// Keep writes nothing: the gateway's version stays in spite of git (conflictPolicy gatewayWins). Where the path was
	// ours it stays ours, with the new Want and the old Have.
	Keep
)

// Change is one line of a plan.
type Change struct {
	Op   Op
	Path string
	// ID is the blob that git wants here: Create, Update, Adopt and Keep.
	ID ID
	// Exec is whether git wants the executable bit.
	Exec bool
	// Origin is the index of the mapping in Changes.Mappings.
	Origin uint16
	// Found is what the plan saw on the disk. Whoever applies the change looks again: what moved meanwhile is a conflict.
	Found Stat
	// FoundID is the blob id of what lies there: from the manifest where stat agrees with it, else hashed. Zero where
	// nothing lies there, or something that is no file.
	FoundID ID
	// Conflict is true where what lies there is the gateway's own, so that it must go to lost+found before it is
	// replaced or deleted.
	Conflict bool
	// Owned is true where the manifest has a record of the path.
	Owned bool
}

// Changes is a plan: what one sync does, sorted by path, at most one Change a path.
type Changes struct {
	// From and To are the commits; From is zero at a first sync.
	From, To ID
	Mappings []Origin
	List     []Change
	// Unchanged counts the desired files that need nothing.
	Unchanged int
	// Total is the number of files that will be ours afterwards.
	Total int
	// Warnings are for people: skipped submodules, optional sources that are not there.
	Warnings []string
	// Full says that every file was compared, not only what changed between two commits.
	Full bool
}
