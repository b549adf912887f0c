//! The pages of the program itself. Those that only its start needed stay mapped, and are most of what an idle process
//! takes.
#![expect(unsafe_code, reason = "the C library's functions for that are called")]

/// Lets the system have the pages of the program, and of its libraries, that nobody has written to. What is used again
/// is mapped again, out of the page cache: that takes some microseconds for each 64 KB.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `unmap` is what dl_iterate_phdr wants, and needs no data.
    unsafe {
        nix::libc::dl_iterate_phdr(Some(linux::unmap), std::ptr::null_mut());
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use nix::libc::{
        _SC_PAGESIZE, MADV_DONTNEED, PF_W, PT_LOAD, c_int, c_void, dl_phdr_info, madvise, size_t, sysconf,
    };

    /// Unmaps one object's pages that can't have been written to: not even for relocations, which what is read-only
    /// later may have had.
    pub(super) unsafe extern "C" fn unmap(info: *mut dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr gives a description of an object that stays until this returns.
        let (base, headers) = unsafe {
            let info = &*info;
            (info.dlpi_addr, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
        };
        // SAFETY: it takes a number.
        let page = u64::try_from(unsafe { sysconf(_SC_PAGESIZE) }).unwrap_or(4096);
        for header in headers.iter().filter(|header| header.p_type == PT_LOAD && header.p_flags & PF_W == 0) {
            let (from, to) = (base + header.p_vaddr, base + header.p_vaddr + header.p_memsz);
            // A page that it shares with another segment isn't its own.
            let (from, to) = (from.next_multiple_of(page), to - to % page);
            if from < to {
                // SAFETY: these pages have been mapped from a file, for reading alone, and are mapped from it again
                // when they are touched.
                unsafe {
                    madvise(from as *mut c_void, usize::try_from(to - from).unwrap_or(0), MADV_DONTNEED);
                }
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_program_goes_on_without_its_pages() {
        for _ in 0..3 {
            super::give_back();
            assert_eq!(format!("{:?}", [1, 2].iter().sum::<i32>()), "3");
        }
    }
}
