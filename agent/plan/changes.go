package plan

import "stoker.io/stoker/api/v1alpha1"

// Op is what happens to one path.
type Op uint8

// The operations of a plan, in the order in which a person reads them.
const (
	// Create writes a file where none is. Where Found is a directory, the same plan deletes all files in it; what is left
	// of it are empty directories, which make way.
	Create Op = iota + 1
	// Update replaces a file that is there (also its mode alone: then ID equals FoundID).
	Update
	// Delete removes a file that is ours, or under prune mirror one that is in the way of nothing but not in git.
	Delete
	// Adopt writes nothing: what lies there is equal or equal in meaning, and its record is made or renewed.
	Adopt
	// Release writes nothing: the record goes, the file stays. Found is Missing where somebody has deleted it already.
	Release
	// Keep writes nothing: the gateway's version stays in spite of git (conflictPolicy gatewayWins). Where the path was
	// ours it stays ours, with the new Want and the old Have.
	Keep
)

// Change is one line of a plan.
type Change struct {
	Path string
	// Found is what the plan saw on the disk. Whoever applies the change looks again: what moved meanwhile is a conflict.
	Found Stat
	// ID is the blob that git wants here: Create, Update, Adopt and Keep; see Changes.Signed.
	ID ID
	// FoundID is the blob id of what lies there: from the manifest where stat agrees with it, else hashed. Zero where
	// nothing lies there, or something that is no file.
	FoundID ID
	// Origin is the index of the mapping in Changes.Mappings.
	Origin uint16
	Op     Op
	// Exec is whether git wants the executable bit.
	Exec bool
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
	// Mappings names what Change.Origin means. It goes into the manifest's header as it is: records that are not in List
	// keep their old Origin, and it still means the same here.
	Mappings []Origin
	List     []Change
	// Signed names the resource.json files that are written with another signature than git's, because that one does not
	// fit the files beside it: path → git's blob, which the record's Want is. The Change's ID is that of the bytes.
	Signed map[string]ID
	// Unchanged counts the desired files that were compared and need nothing.
	Unchanged int
	// Drifted counts the files that only the gateway changed and that a full plan without Repair leaves as they are.
	Drifted int
	// Total is the number of files that will be ours afterwards.
	Total int
	// Warnings are for people: skipped submodules, optional sources that are not there.
	Warnings []string
	// Mounted are mounts of the gateway at which git has something. That is left alone.
	Mounted []string
	// Full says that every file was compared, not only what changed between two commits.
	Full bool
	// Held is set where the plan must not be applied as it is. The plan beside it is what would happen.
	Held *Held
}

// Held says why a plan waits for a person. It is no error.
type Held struct {
	Reason  v1alpha1.Reason // ConflictDetected or MassDeletion
	Message string
	Paths   []string // the first ten
}
