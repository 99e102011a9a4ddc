// Package disk brings the changes of a plan to a gateway's data directory, and knows what lies there. It implements
// plan.State and plan.Manifest.
//
// # Promises
//
// A reader sees each file as it was or as it will be, never half. A byte that the gateway wrote is not lost: what git
// does not have goes to lost+found before it goes away. A process that dies at any instant, and a power cut, leave a
// directory that the next Open brings to the new commit or back to the old one, without help. Nothing outside the data
// directory is read or written, whatever links lie in it.
//
// Not promised: bytes that a process writes through a file it opened before the file was replaced, after the replaced
// file was looked at, are lost. Extended attributes and ACLs are not carried over. Outside Linux the promises are
// smaller; see ops_other.go.
//
// # Files in .stoker
//
//	manifest      what is ours: see manifest.go
//	journal       the sync that is being applied: see journal.go
//	undo          the same journal, while it is taken back
//	staging/      wanted bytes before, and replaced ones after they changed places
//	areas         directories with a .stoker/staging of their own, because they are other mounts
//	lost+found/   <UTC time>-<commit>/<path>, and <UTC time>-<commit>.jsonl that says what and why
//	note-*        small notes of the sync
//	lock          locked by the agent that writes; says who it is
//
// # How a sync survives a crash
//
// Each line is durable before the next one starts, unless it says otherwise:
//
//  1. The wanted bytes are in staging, one slot a change, on the mount of their destination.
//  2. The journal is renamed into place. It has all changes, the steps, and the inode of every staged file.
//  3. Steps: names move between staging and their places; directories come and go. In any order on the disk.
//  4. What was replaced is compared with what the plan saw; what git does not have gets a second name in lost+found.
//  5. All moved names are made durable.
//  6. The new manifest is renamed into place. This is the point of no return.
//  7. The journal is removed.
//  8. Staging is emptied, lost+found is kept within its bounds. Not durable.
//
// A crash before 2 leaves no journal, and nothing but staging was touched: it is emptied. Between 2 and 7 there is a
// whole journal, because it is renamed into place after its bytes are durable: Open does 3 to 8 again. That is safe, as
// each step can tell whether it was done: a slot that still holds the staged file has not moved; one that does not, has.
// The file is known by its inode, size and mtime, and, where the directory was copied file by file meanwhile, by its
// bytes. What is neither in its slot nor at its place by either is not guessed at: what lies in the slot is saved, and
// the manifest is marked incomplete, so that the next plan compares every file. So it is where the manifest is not the
// one that the journal says the run started from. What was replaced is in its slot until 8, so that 4 finds it again;
// removing and making directories, merging the manifest and writing lost+found give the same when repeated. After 7 only
// 8 is left, which is repeated as for a crash before 2.
//
// Nothing that was replaced or removed loses its last name before 8. So a sync that fails in 3 to 6, say because the
// disk is full, is taken back: the journal is renamed to undo, which needs no space and turns recovery round; steps are
// undone in reverse, each again only if its slot says that it was done; the undo file goes; then comes 8. What the
// gateway wrote to a new file, or put in its place, meanwhile stays. The same happens where 4 finds what the plan did not
// see, and the caller wants nothing of the gateway's to be replaced; see RefuseForeign.
//
// A journal that cannot be read was damaged after it was written, and nobody knows what staging holds: all of it goes to
// lost+found, and the manifest is marked incomplete, so that the next plan compares every file.
//
// # Links and races
//
// Directories are opened name by name through os.Root, each looked at before and compared after it is opened, so that a
// link is never followed, one inside the data directory no more than any other. On Linux names move by renameat2 between
// open directories: an exchange for what is replaced, so that its name is never missing and its bytes, whatever they
// are by then, are in our hands; no-replace for what is new. On a file system without these (NFS, some FUSE) what is
// replaced is moved aside, and the new file gets its name by a hard link: for that moment the name is missing, but nothing
// is overwritten. Where there are no hard links either, what the gateway puts there in that moment is.
package disk
