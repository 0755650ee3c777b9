// 16 bytes of elements as the words that they are in registers while they wait. Elements of 16 bits that are read under a
// condition the compiler keeps in a register each, and moves all of them as soon as they come: no access of a thread is
// then under way beside another.
#pragma once
typedef Pack<u32, 4> Words;

template <class T> __device__ __forceinline__ Words read_words(const T *p)
{
    return load<4>(reinterpret_cast<const u32 *>(p));
}
template <class T> __device__ __forceinline__ Pack<T, 16 / sizeof(T)> elements_of(const Words &words)
{
    union { Words words; Pack<T, 16 / sizeof(T)> elements; } both = {words};
    return both.elements;
}
template <class T> __device__ __forceinline__ Words words_of(const Pack<T, 16 / sizeof(T)> &elements)
{
    union { Pack<T, 16 / sizeof(T)> elements; Words words; } both = {elements};
    return both.words;
}
